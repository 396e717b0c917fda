"""The Trainer of transformers, on small models with random weights."""

from pathlib import Path
from typing import Any

import torch

from tests.trainers.run import Run
from torch_lms.transformers import LMSCallback  # before transformers, where torchvision is not of PyTorch's build

import transformers  # isort: skip

VOCABULARY, LENGTH = 300, 32


def gpt2(run: Run) -> dict[str, Any]:
    """Accumulation, recomputed activations, evaluation, a checkpoint in the midst, and going on from it."""
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=3, n_head=4)

    def trained(checkpoint: Path | None = None) -> Any:
        return _trained(
            run,
            lambda: transformers.GPT2LMHeadModel(config),
            _texts(),
            checkpoint,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            save_steps=6,
            eval_strategy="steps",
            eval_steps=6,
        )

    return {"whole": trained(), "resumed": trained(run.folder / "checkpoint-6")}


def llama_lora(run: Run) -> dict[str, Any]:
    """Adapters of a model in bfloat16, saved."""
    import peft

    config = _llama(width=128, layers=4)
    adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")

    def model() -> Any:
        base = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        return peft.get_peft_model(base, adapters)

    return _trained(run, model, _texts(), bf16=True, save_steps=6)


def qlora(run: Run) -> dict[str, Any]:
    """Adapters of a model whose weights are of 4 bits, by kernels that take addresses, and an optimizer of 8 bits."""
    import peft

    config = _llama(width=256, layers=6)
    adapters = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    quantized = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )

    def model() -> Any:
        transformers.LlamaForCausalLM(config).save_pretrained(run.folder / "base")
        base = transformers.AutoModelForCausalLM.from_pretrained(
            run.folder / "base", quantization_config=quantized, device_map={"": "cpu"}
        )
        return peft.get_peft_model(peft.prepare_model_for_kbit_training(base), adapters)

    return _trained(run, model, _texts(), bf16=True, save_steps=6, optim="adamw_bnb_8bit")


def bert(run: Run) -> dict[str, Any]:
    """Classifies texts."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
    )
    rows = [{"input_ids": row["input_ids"], "labels": number % 2} for number, row in enumerate(_texts())]
    return _trained(run, lambda: transformers.BertForSequenceClassification(config), rows, save_steps=6)


def vit(run: Run) -> dict[str, Any]:
    """Classifies images."""
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    images = torch.randn(48, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    rows = [{"pixel_values": image, "labels": number % 10} for number, image in enumerate(images)]
    return _trained(run, lambda: transformers.ViTForImageClassification(config), rows, save_steps=6)


def _llama(width: int, layers: int) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )


def _texts() -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(0, VOCABULARY, (48, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def _trained(run: Run, new: Any, rows: list[Any], checkpoint: Path | None = None, **options: Any) -> dict[str, Any]:
    """Twelve steps, evaluated and saved."""
    transformers.set_seed(0)
    callbacks = run.callbacks(LMSCallback)
    arguments = transformers.TrainingArguments(
        str(run.folder),
        per_device_train_batch_size=4,
        max_steps=12,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = transformers.Trainer(new(), arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=callbacks)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    evaluated = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(run.folder / "model"))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "evaluated": evaluated, "weights": trainer.model.state_dict()}
