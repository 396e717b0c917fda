"""A U-Net of Keras's, trained with less memory than it needs:

    pip install 'torch-lms[keras]'
    python examples/keras_unet.py

Its tensors need about 260 MB. They stay within 80 MB here, since the callback says so; in a program of your own leave
``limit`` out, so that nothing moves before memory runs short. Without the callback it also works, unchanged:
`torch-lms run --limit 80MB SCRIPT`.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported

import keras
import numpy as np
from keras import layers

from torch_lms.keras import LMS

SIZE, STEPS = (64, 6) if "--quick" in sys.argv else (128, 20)

lms = LMS(limit="20MB" if "--quick" in sys.argv else "80MB", min_size="64KiB")  # before the model is built


def block(x, width: int):
    for _ in range(2):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
    return x


def unet(width: int = 16, depth: int = 3) -> keras.Model:
    images = x = keras.Input((SIZE, SIZE, 1))
    skips = []
    for level in range(depth):
        skips.append(x := block(x, width << level))
        x = layers.MaxPooling2D()(x)
    x = block(x, width << depth)
    for level in reversed(range(depth)):
        x = block(layers.Concatenate()([layers.UpSampling2D()(x), skips[level]]), width << level)
    return keras.Model(images, layers.Conv2D(1, 1, activation="sigmoid")(x))


images = np.random.default_rng(0).random((4 * STEPS, SIZE, SIZE, 1), dtype=np.float32)
masks = (images > 0.5).astype(np.float32)

model = unet()
model.compile("adam", "binary_crossentropy")
history = model.fit(images, masks, batch_size=4, epochs=2, verbose=2, callbacks=[lms])
print(model.evaluate(images, masks, batch_size=4, verbose=0, return_dict=True))
