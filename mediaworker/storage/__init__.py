"""Files that survive kills, power cuts and damage: SQLite databases on their threads, and durable writes."""
