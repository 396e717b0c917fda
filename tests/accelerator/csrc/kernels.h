// What PyTorch's dispatcher runs on the test accelerator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace accelerator {

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// One for a single operator of the host, of which `from` takes note.
at::Generator draw(const at::Generator& from);

// As `torch.UntypedStorage.resize_`.
void resize_storage(const c10::Storage& storage, size_t nbytes);

} // namespace accelerator
