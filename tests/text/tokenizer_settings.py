"""Tokenizers with settings of every kind, and texts for them. make_components.py makes goldens of them, and
tokenizers_live_test.py compares them with the Python package `tokenizers`. Seeded: the same on each run.

The ids of a text show its pieces: the vocabulary has a token for each byte, and each piece ends with the bytes of "</w>"."""
import itertools
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from tokenizer_differential import random_text  # noqa: E402

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# The byte-level alphabet of GPT-2.
BYTE_CHARACTERS = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
ADDED = [("<plain>", {}), ("<left>", {"lstrip": True}), ("<right>", {"rstrip": True}), ("<both>", {"lstrip": True, "rstrip": True}),
         ("word", {"single_word": True}), ("Caf\u00e9", {"normalized": True}), ("<|end|>", {"special": True})]
FUSE = {"type": "Fuse"}
REVEALING = {"byte_fallback": True, "end_of_word_suffix": "</w>"}

PATTERNS = [
    "a+", "[0-9]", r"\d{2}", "", "x*", "(?=b)", "a|", "(|a)+", "b$", "^a", r"\s+(?!\S)|\s+", r"\w+", r"\W+", r"\bb", r"\B", r"\h+", r"\H",
    r"\pN", r"\p{Han}+", r"\p{^L}", r"\P{L}+", r"\P{^L}", r"\p{Letter}", r"\p{Uppercase_Letter}", r"\p{ l u }", r"\p{LC}", r"\p{Alphabetic}",
    r"\p{Punct}", r"\p{Word}+", r"\p{Greek}", r"\p{Hangul}|\p{Kana}", r"\p{Emoji}", r"\p{Currency_Symbol}", r"[[:alpha:]]+", r"[[:^alnum:]]",
    r"[[:punct:]]", r"[[:space:][:digit:]]+", r"[[:upper:]][[:lower:]]*", r"[[:word:]]+", r"[[:cntrl:][:blank:]]", r"[[:xdigit:]]{2}",
    r"[\S]+", r"[^\S]", r"[\W_]", r"[\D]", r"[^\p{L}\P{M}]", r"[a[bc]]", r"[a-z&&[^aeiou]]+", r"[^a-z&&[^b]]", r"[\p{L}&&[^\p{Han}]]+",
    r"[a-d[^\d]&&\w]", r"[a&&b]", r"[a&&]", "[]a]", "[^]a]", "[a-]", "[-a]", "[a-c-e]", "[+--]", r"[a\-z]", r"[\]]", r"[\b]", r"[\n\t]",
    r"[\u4e00-\u9fa5]+", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"\x41|\u0042|\x{43}", r"\xe4\xbd\xa0", r"\303\251", r"\a|\e|\v|\f|\0",
    r"\i\q|\_", r"\Qa", "a{2}?", "a{1,2}?", "a{1,2}+", "a{2}+", "a{,2}", "a{,}", "a{x}", "a{", "a**", "a?*", "a+??", "a*+a", "a?+a", "a{1}{2}",
    "(?i:k|'s)", "(?i)[^a]", r"(?i)\p{Lu}", r"(?i:[a-c\u00e9])+", "(?m:a.)", "a.", "(?i-m:B).", "a(?i)b|c", "(?x) a b # c", "(?x:a [ b]\n)",
    r"(?x)a\ b", "(?i)(?x) A b", "(?#x)a", r"(a)\1", r"(?<n>a)b?\k<n>", r"(?'n'a)\k'n'", "(?<!a|bb)c", r"(?<=\s|^)a", "(?<=a|bc)d",
    "(?>a|ab)c", r"\Aa|b\z", r"\R", r"\N", r"\O", "((a)|b)+c", r"\Z", "]", "}", r"[\w-]+", "[^a]",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+""",
]
TEXTS = [
    "", " ", "  ", "a", "\u0301", "ab12 34c", "aaab.b\nab]aB", "abab xbb c ac bc bbc", "axxa", "Caf\u00e9 cafe\u0301 CAFE\u0301", "\u4f60\u597d\uff0c\u4e16\u754c\u3002a\u3042\u30ab\u3005\u3007\u3001",
    "don't I'LL 's '\u017f K\u212a", "\r\n \t\x0b\x0c\x85\u2028\u180e\u200b x", "\x00\x01\x1f\x7f\x9f\ufffd", "1\u0663\u00b2\u00bd\u2167 12345", "!$a+_-{}[]^~|\u00bf\u20ac\u3001\uff01",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\U0001f1e9\U0001f1ea", "\u0130I\u0131i\u00df\u1e9e\u03a3\u03c3\u03c2\u01c5", "\uac00\u11a8\u1100\u1161 \ufb01\u2460\ufdfa\u32ff\u212b\uff21\uff76\uff9e",
    "a\u0315\u0300\u05ae\u0316b\u0f71\u0f72", "  <left>  <right>  <both>  word words.word", "<|end|><plain>a<plain>", "\u2581\u2581a b", "p1N pN {a{x}a{} Qa iq _", "\u03b1\u00b7\u0345\u24d0\u203f\u200c_",
    "aX!? ,b 's do not n't", "x, y : \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \u05e9\u05c1", "AbCdE fGh \u0391\u03b2", "0af09gz", "a\na\n", "abcdz-e]", "\x07\x1b\x08",
]


def tokenizer_json(vocab=BYTES, merges=(), added=ADDED, normalizer=None, pre_tokenizer=None, decoder=FUSE, **model):
    vocab = {token: number for number, token in enumerate(vocab)}
    tokens = [{"id": len(vocab) + number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": False, **flags} for number, (content, flags) in enumerate(added)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": list(merges), **model}}


def replaces():
    for pattern in [{"String": "a"}, {"String": "ab"}, {"String": ""}, {"String": "\u2581"}, {"Regex": r"\s+"}, {"Regex": "a|(?=b)"}, {"Regex": "x*"}]:
        for content in ["", "\u2581", "<ab>"]:
            yield {"type": "Replace", "pattern": pattern, "content": content}


def normalizers():
    for name in ["NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel"]:
        yield {"type": name}
    for left, right in itertools.product([True, False], repeat=2):
        yield {"type": "Strip", "strip_left": left, "strip_right": right}
    for prefix in ["\u2581", "ab", ""]:
        yield {"type": "Prepend", "prepend": prefix}
    for clean, chinese, lower in itertools.product([True, False], repeat=3):
        for accents in [None, True, False]:
            yield {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents,
                   "lowercase": lower}
    yield from replaces()


def pre_tokenizers():
    for name in ["BertPreTokenizer", "Whitespace", "WhitespaceSplit"]:
        yield {"type": name}
    for individual in [True, False]:
        yield {"type": "Digits", "individual_digits": individual}
    for behavior in BEHAVIORS:
        yield {"type": "Punctuation", "behavior": behavior}
    for delimiter in [" ", "-", "\u4e16"]:
        yield {"type": "CharDelimiterSplit", "delimiter": delimiter}
    for length in [1, 2, 5]:
        yield {"type": "FixedLength", "length": length}
    for replacement, scheme, split in itertools.product(["\u2581", "_"], ["always", "first", "never"], [True, False]):
        yield {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": split}
    for prefix, regex in itertools.product([True, False], repeat=2):
        yield {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}
    for behavior, invert, pattern in itertools.product(BEHAVIORS, [True, False],
                                                       [{"String": "ab"}, {"String": ""}, {"Regex": "[0-9]"}, {"Regex": "x*"}, {"Regex": "(?=b)|a"}]):
        yield {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def patterns():
    for pattern in PATTERNS:
        yield {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True}


def decoders():
    for name in ["ByteFallback", "Fuse"]:
        yield {"type": name}
    yield {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for suffix in ["</w>", "a"]:
        yield {"type": "BPEDecoder", "suffix": suffix}
    for prefix, cleanup in itertools.product(["##", ""], [True, False]):
        yield {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}
    for cleanup in [True, False]:
        yield {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup}
    for scheme in ["always", "first", "never"]:
        yield {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True}
    for content, start, stop in itertools.product([" ", "a"], [0, 1, 2], [0, 1]):
        yield {"type": "Strip", "content": content, "start": start, "stop": stop}
    yield from replaces()


def sequence(key, members):
    return {"type": "Sequence", key: members}


# Tokens for the decoders, some of them spelled in the byte-level alphabet.
DECODED = [*BYTES[0x41:0x44], "<0xE4>", "<0xBD>", "<0xA0>", "<0x+A>", "<0xZZ>", "<0x1>", "a", "b", "ab", "aa", " ", "  ", "\u2581", "\u2581a", "\u2581\u2581", "a</w>", "</w>", "</w>b",
           "##a", "##", " .", " '", " n't", "do", " do not", "'s", " 've", "|", "a|b", "<pad>", "\u0120", "\u0120a", "\u00e4\u00bd", "\u0142", "\u00c3", "\u00a9", "\u4f60", "\u20ac x",
           "xx", "x", "\u00e9", "\u00bd", "?", " !", ","]


def encoders():
    """Pairs of a name and a tokenizer whose pieces are to be compared."""
    for normalizer in normalizers():
        yield "normalizer", tokenizer_json(normalizer=normalizer, **REVEALING)
        first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
        yield "normalizer", tokenizer_json(normalizer=normalizer, pre_tokenizer=first, **REVEALING)
    for pre_tokenizer in itertools.chain(pre_tokenizers(), patterns()):
        yield "pre_tokenizer", tokenizer_json(pre_tokenizer=pre_tokenizer, **REVEALING)


def models():
    """Models with options, on texts of a few letters."""
    letters = ["<unk>", "a", "b", "c", "ab", "abc", "bc", "##a", "##b", "##c", "##bc", "a</w>", "b</w>", "c</w>", "##c</w>", "bc</w>", "##bc</w>", "\u2581", "\u2581a", "\u0120", "\u0120a"]
    plain = ["a b", "b c", "ab c", "\u2581 a", "\u0120 a"]
    suffixed = ["b c</w>", "a b"]
    prefixed = ["##b ##c", "a ##b"]
    both = ["##b ##c</w>"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    for unk, fuse, fallback, ignore, pre_tokenizer in itertools.product([None, "<unk>"], [False, True], [False, True], [False, True],
                                                                       [None, byte_level, metaspace, {"type": "Whitespace"}]):
        for prefix, suffix, merges in [(None, None, plain), (None, "</w>", suffixed), ("##", None, prefixed), ("##", "</w>", both), ("", "", plain)]:
            yield tokenizer_json([*letters, *BYTES[:0xC4]], merges, pre_tokenizer=pre_tokenizer, unk_token=unk, fuse_unk=fuse, byte_fallback=fallback,
                                 ignore_merges=ignore, continuing_subword_prefix=prefix, end_of_word_suffix=suffix)


MODEL_TEXTS = ["abc", "abcabc", "a bc  cab", "ab<plain>bc", "xaby\u00e9z\u00fc", "\u4f60abc", "abc" * 30, "cccbcabbaabc"]


def random_encoder(rng):
    pick = lambda source, most: [rng.choice(source) for _ in range(rng.randrange(most + 1))]
    steps = pick(ALL_NORMALIZERS, 3)
    cuts = pick(ALL_PRE_TOKENIZERS, 4)
    return tokenizer_json(normalizer=sequence("normalizers", steps) if steps else None,
                          pre_tokenizer=sequence("pretokenizers", cuts) if cuts else None, **REVEALING)


def random_byte_level(rng):
    """ByteLevel at the end, and tokens that are spelled in its alphabet."""
    letters = ["\u0120", *"abcdeg12'\u00e9\u00c3\u00a9", "\u010a"]
    merges = [f"{left} {right}" for left in letters for right in letters]
    vocab = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges)]
    cuts = [rng.choice(ALL_PRE_TOKENIZERS) for _ in range(rng.randrange(3))]
    cuts.append({"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": rng.random() < 0.5})
    steps = [rng.choice(ALL_NORMALIZERS)] if rng.random() < 0.5 else []
    rng.shuffle(merges)
    return tokenizer_json(vocab, merges, normalizer=sequence("normalizers", steps), pre_tokenizer=sequence("pretokenizers", cuts),
                          ignore_merges=rng.random() < 0.3)


def random_decoder(rng):
    steps = [rng.choice(ALL_DECODERS) for _ in range(rng.randrange(1, 5))]
    decoder = rng.choice([sequence("decoders", steps), sequence("decoders", [sequence("decoders", steps[:2]), *steps[2:]])])
    return tokenizer_json(DECODED, decoder=decoder)


def random_ids(rng, size):
    return [rng.randrange(size) for _ in range(rng.randrange(1, 9))]


# What comes out of nothing has no alignment with the original text, so that with further components parts of the text appear
# twice in `tokenizers`. And several of these are refused, because the text grows too much.
EMPTY_MATCHES = [{"String": ""}, {"Regex": "a|(?=b)"}, {"Regex": "x*"}]


def has_alignment(component):
    return component.get("prepend") != "" and (component.get("pattern") not in EMPTY_MATCHES or not component["content"])


ALL_NORMALIZERS = [n for n in normalizers() if has_alignment(n)]
# The scheme "first" looks at the alignment of a piece with the original text, which is exact only for the first piece.
ALL_PRE_TOKENIZERS = [p for p in pre_tokenizers() if p.get("prepend_scheme") != "first"]
ALL_DECODERS = [d for d in decoders() if has_alignment(d)]


def character_classes():
    """Settings that show a class of characters."""
    for name in ["Lowercase", "StripAccents", "NFD", "NFKD", "NFKC", "NFC", "Nmt"]:
        yield {"normalizer": {"type": name}}
    for accents in [True, False]:
        yield {"normalizer": {"type": "BertNormalizer", "clean_text": not accents, "handle_chinese_chars": not accents,
                              "strip_accents": accents, "lowercase": False}}
    for name in ["BertPreTokenizer", "Whitespace"]:
        yield {"pre_tokenizer": {"type": name}}
    yield {"pre_tokenizer": {"type": "Digits", "individual_digits": True}}
    for pattern in [r"\w", r"\s", r"\d", r"\p{L}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{Han}", r"\p{Greek}", r"\p{Punct}", r"\p{Emoji}",
                    r"\p{Cntrl}", r"\p{Upper}", r"\p{Blank}", r"\p{Space}",
                    *(f"[[:{name}:]]" for name in "blank cntrl digit graph print punct space upper xdigit word ascii".split())]:
        yield {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": False}}
