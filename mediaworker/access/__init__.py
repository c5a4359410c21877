"""Access to the HTTP and media ports: who may connect, how many, what failures cost, and how a refusal is answered."""
