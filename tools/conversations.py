"""What is said in the demo, language by language: a SIP call of one speaker, and a Twilio stream of two.

The texts are what the speakers say, which is not always what the packages print; see benchmarks/words/mended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.prompts import ENGLISH, Turns, Voice


@dataclass(frozen=True)
class Conversation:
    voice: Voice
    call: Turns
    stream: Turns


CONVERSATIONS = {
    "en": Conversation(
        ENGLISH,
        [("main", "pbx-invalid"), ("main", "conf-onlyperson"), ("main", "privacy-prompt")],
        [
            ("inbound", "tt-somethingwrong"), ("inbound", "auth-thankyou"), ("outbound", "vm-rec-name"),
            ("outbound", "demo-thanks"),
        ],
    ),
    "es": Conversation(
        Voice(
            Path("/usr/share/asterisk/sounds/es_MX_f_Allison"),
            {
                "queue-periodic-announce": "Todos nuestros representantes se encuentran ocupados, por favor espere y "
                "pronto le atenderemos.",
                "queue-youarenext": "Su llamada es la primera en línea y será atendida por el próximo representante.",
                "vm-nobodyavail": "En este momento nadie está libre para responder a su llamada.",
                "vm-sorry": "Lo siento, no comprendí su respuesta.",
                "vm-rec-name": "Después del tono diga su nombre y presione la tecla de número.",
                "queue-thankyou": "Muchas gracias por su paciencia.",
            },
        ),
        [("main", "queue-periodic-announce"), ("main", "queue-youarenext")],
        [
            ("outbound", "vm-nobodyavail"), ("inbound", "vm-sorry"), ("outbound", "vm-rec-name"),
            ("inbound", "queue-thankyou"),
        ],
    ),
    "fr": Conversation(
        Voice(
            Path("/usr/share/asterisk/sounds/fr_CA_f_June"),
            {
                "invalid": "Désolé, ce numéro de poste n'est pas valide. Veuillez essayer de nouveau.",
                "pls-hold-while-try": "Veuillez patienter pendant que l'on achemine votre appel.",
                "queue-youarenext": "Votre appel sera le prochain à être traité.",
                "privacy-unident": "Le numéro que vous tentez de joindre n'accepte pas les appels inconnus.",
                "something-terribly-wrong": "Il y a quelque chose de vraiment mauvais.",
                "transfer": "Veuillez patienter, pendant que je tente d'établir la connexion.",
                "queue-thankyou": "Merci de votre patience.",
            },
        ),
        [("main", "invalid"), ("main", "pls-hold-while-try"), ("main", "queue-youarenext")],
        [
            ("outbound", "privacy-unident"), ("inbound", "something-terribly-wrong"), ("outbound", "transfer"),
            ("inbound", "queue-thankyou"),
        ],
    ),
    "it": Conversation(
        Voice(
            Path("/usr/share/asterisk/sounds/it_IT_m_Carlo"),
            {
                "ss-noservice": "Il numero che ha digitato non è in uso. Prego controllare il numero e riprovare.",
                "tt-allbusy": "Tutti gli operatori della ditta sono al momento impegnati con altri clienti. Rimanga in "
                "linea e la sua chiamata verrà risposta secondo l'ordine in cui è stata ricevuta.",
                "tt-somethingwrong": "C'è qualcosa di terribilmente sbagliato.",
                "vm-nonumber": "Sono spiacente ma non so chi abbia mandato questo messaggio.",
                "vm-whichbox": "Per lasciare un messaggio, prego digitare un numero di casella di posta.",
                "vm-toforward": "Premere 8 per inoltrare il messaggio ad un altro utente.",
            },
        ),
        [("main", "ss-noservice"), ("main", "tt-allbusy")],
        [
            ("inbound", "tt-somethingwrong"), ("outbound", "vm-whichbox"), ("inbound", "vm-nonumber"),
            ("outbound", "vm-toforward"),
        ],
    ),
    "ru": Conversation(
        Voice(
            Path("/usr/share/asterisk/sounds/ru_RU_f_IvrvoiceRU"),
            {
                "pbx-invalid": "Извините, данный номер не существует. Пожалуйста, попробуйте ещё раз.",
                "tt-allbusy": "В данный момент все операторы заняты. Пожалуйста, оставайтесь на линии, ваш вызов будет "
                "принят в порядке очереди.",
                "tt-somethingwrong": "Что-то тут совсем не так.",
                "sorry-youre-having-problems": "Нам очень жаль, что у вас проблемы.",
                "privacy-incorrect": "Извините, это неверный номер.",
                "vm-dialout": "Пожалуйста, подождите. Происходит соединение.",
            },
        ),
        [("main", "pbx-invalid"), ("main", "tt-allbusy")],
        [
            ("inbound", "tt-somethingwrong"), ("outbound", "sorry-youre-having-problems"),
            ("inbound", "privacy-incorrect"), ("outbound", "vm-dialout"),
        ],
    ),
}  # fmt: skip
