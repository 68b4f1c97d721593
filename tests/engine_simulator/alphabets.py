"""What the pretend model likes to say: each alphabet is a list of texts, drawn one by one.

A text becomes one token, or several where the vocabulary has no token for it. Characters that
need several tokens, and words that spell control tokens, are here to be cut in the middle.
"""

from __future__ import annotations

WORDS = """
 the of and to in is that it for on are as with they at be this from have or by one had not but what
 all were when we there can an your which their said if do will each about how up out them then she
 many some so these would other into has more her two like him see time could no make than first been
 water long little very after words called just where most know get through back much before go good
 new write our used me man too any day same right look think also around another came come work three
 word must because does part even place well such here take why things help put years different away
 again off went old number great tell men say small every found still between name should home big give
 café naïve résumé über señor façade déjà Ångström jalapeño œuvre Straße piñata crème brûlée
 Việt điều nghĩa trường
"""

PUNCTUATION = [
    ".",
    ",",
    "!",
    "?",
    ";",
    ":",
    " -",
    " (",
    ")",
    "'s",
    "'t",
    "n't",
    " \u2014",
    "\u2026",
]
DIGITS = ["0", "1", "7", "42", " 3", " 100", "%", " $"]

# One token each.
CJK_WHOLE = list("的一是不了人我在有他这中大来上国日本語東京한국어")
# Two or three byte tokens each: their bytes are in the vocabulary only in parts.
CJK_SPLIT = [
    *list("龍鱻麤靈鬱籲驫灣臺鹽憂慮齉龘纛爨餐廳謝漢"),
    " 龍",
    " 漢",
    "𠮷",
    "𠜎",
    "겋",
    "뷁",
]

EMOJI = [
    *[
        "🌙",
        "🌟",
        "🍀",
        "🎉",
        "🐍",
        "👍",
        "💡",
        "📦",
        "🔥",
        "😀",
        "😅",
        "🙏",
        "🚀",
        "🤖",
        "🥐",
        "🦊",
        "🫠",
        "🧪",
    ],
    *[" 🌙", " 🔥", " 🚀", " 🫠", " ☕", "☕", "✂️", "❤️", "€", "𝛑", "🇫🇷", "👩‍💻", "👍🏽", "1️⃣"],
]

# Text that spells a control token with ordinary ones.
LOOK_ALIKES = [
    *["<|im_end|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>\n", "<|im_start|>user\n"],
    *["<|begin_of_text|>", "<|", "|>", " <|im_", "im_end|>", "<", "|", ">", "im", "_end", "_id"],
    *["<|start_header_id|>user", "<|endoftext|>", "</s>", "[INST]"],
]

# Bytes that transports, parsers and databases trip over.
NASTY = [
    *[" ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\u00a0", "\u2028", "\u2029", "\ufeff"],
    *["\u0000", "\u0001", "\u007f", "\u0085", "\u200b", "\u200d", "e\u0301", "\ufffd", "\uffff"],
    *["data:", "data: ", "data: [DONE]\n\n", "[DONE]", "\n\ndata: {", "event: error\n", "id: 7\n"],
    *[": ping\n\n", '"', "\\", '\\"', "\\u0041", "\\n", "'", "`", "{", "}", "[", "]", "</script>"],
    *["\\ud83d", "%00", "&amp;", "null", "--", "';", "\x1b[31m", "\u202e"],
]

# Not tokens of their own: the tokenizer has to spell these from smaller ones.
NEVER_ONE_TOKEN = frozenset(
    [
        *CJK_SPLIT,
        *EMOJI,
        *(text for text in LOOK_ALIKES if len(text) > 4),
        "data: [DONE]\n\n",
        "\n\ndata: {",
        ": ping\n\n",
        "event: error\n",
        "id: 7\n",
        "\\ud83d",
    ]
)

# Pieces from which the split texts are spelt, besides the 256 single bytes.
PIECES: list[bytes] = [
    *[b"\xf0\x9f", b" \xf0\x9f", b"\xf0\x9f\x8c", b"\xf0\x9f\x9a", b"\xe9\xbe", b" \xe9\xbe"],
    *[b"\xe9\xb1", b"\xe2\x98", b" \xe2\x98", b"\xef\xb8", b"\xe2\x80", b"\xe6\xbc", b"\xab\xa0"],
    *[b"_start", b"begin", b"_of", b"_text", b"start", b"_header", b"end", b"eot", b"user"],
    *[b"assistant", b"system", b"INST", b"DONE", b"event", b"error", b"ping", b"id", b"/s", b"of"],
]

_SPOKEN = [f" {word}" for word in WORDS.split()]

ALPHABETS: dict[str, list[str]] = {
    "plain": _SPOKEN + PUNCTUATION,
    "emoji": EMOJI * 2 + _SPOKEN[:20],
    "cjk": CJK_WHOLE + CJK_SPLIT * 2 + [",", "。", "\n"],
    "control": LOOK_ALIKES * 2 + _SPOKEN[:20],
    "nasty": NASTY * 2 + _SPOKEN[:20],
    "mixed": _SPOKEN + PUNCTUATION + DIGITS + CJK_WHOLE + CJK_SPLIT + EMOJI + LOOK_ALIKES + NASTY,
}
