"""Whisper on CTranslate2: 99 languages, on any machine; its base model comes from published wheels."""
