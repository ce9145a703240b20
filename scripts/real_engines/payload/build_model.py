"""Writes a tiny random Llama with its own tokenizer, the same every time.

The weights are random but wide, so that greedy output changes with the prompt
and a test that compares two servers' tokens can fail. The tokenizer is learned
from Python's standard library, the one text that is surely on the machine.
"""

import os
import sys
import sysconfig
from pathlib import Path

# Nothing here may look for a model on a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
CONTEXT = 8192
SPECIAL = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from the top level of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [str(file) for file in sorted(library.glob("*.py"))[:100]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(files, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=CONTEXT,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def random_llama() -> LlamaForCausalLM:
    """Draw the weights from a fixed seed."""
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # vLLM's CPU attention has no kernel for narrower heads.
        head_dim=32,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        # The usual 0.02 makes a random model repeat one token whatever it reads.
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer().save_pretrained(folder)
    random_llama().save_pretrained(folder)


if __name__ == "__main__":
    main()
