// Every operator runs the CPU's own kernel on the device's bytes, when its stream comes to it.

#include "kernels.h"

#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "memory.h"
#include "streams.h"

namespace accelerator {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

// -- the same bytes as a tensor of the host ---------------------------------------------------------------------------

// A view of them for kernels, also of a tensor of the host itself. It keeps nothing alive: what is freed meanwhile is handed out again behind this kernel.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const size_t needed = tensor.numel() == 0
      ? 0
      : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  TORCH_CHECK(
      needed <= tensor.storage().nbytes(),
      "an operator uses a tensor of ",
      needed,
      " bytes, whose storage has ",
      tensor.storage().nbytes());
  auto* begin = static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  auto* data = begin == nullptr ? nullptr : begin + tensor.storage_offset() * tensor.itemsize();
  const auto options = at::TensorOptions(tensor.dtype()).device(at::kCPU);
  const c10::InferenceMode off(false); // its kernel runs on another thread
  auto view = at::from_blob(inside(data), tensor.sizes(), tensor.strides(), options);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

// Whether streams use its own bytes, on the device or in page-locked memory.
bool is_used_in_place(const at::Tensor& tensor) {
  return is_on_device(tensor) || is_pinned(tensor.const_data_ptr());
}

// It is about to be used.
void note_use(Uses& uses, const at::Tensor& tensor, bool writes) {
  if (tensor.numel() > 0 && is_used_in_place(tensor)) {
    const auto view = bytes_of(tensor);
    uses.push_back({view.const_data_ptr(), at::detail::computeStorageNbytes(view.sizes(), view.strides(), view.itemsize()), writes});
  }
}

// What a kernel reads of a tensor of the host, as it is now.
at::Tensor snapshot(const at::Tensor& tensor) {
  const c10::InferenceMode off(false);
  auto copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!is_on_device(tensor) && tensor.dim() == 0) {
    return tensor; // a number
  }
  const auto options = at::TensorOptions(tensor.dtype()).device(at::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// `value` with each defined tensor in it, or in lists there, replaced.
template <typename Replace>
IValue replaced(const IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? IValue(replace(tensor)) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? replace(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() && tensor->defined() ? std::optional(replace(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

template <typename Replace>
Stack replaced(const Stack& values, const Replace& replace) {
  Stack found;
  found.reserve(values.size());
  for (const auto& value : values) {
    found.push_back(replaced(value, replace));
  }
  return found;
}

// The tensors in `value`, in order.
std::vector<at::Tensor> tensors_in(const IValue& value) {
  std::vector<at::Tensor> found;
  replaced(value, [&](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

// -- calls of operators -----------------------------------------------------------------------------------------------

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool gives_tensors_alone(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Argument& result) {
    const auto& type = result.type();
    return type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors());
  };
  return std::all_of(schema.returns().begin(), schema.returns().end(), is_tensor);
}

// Where the operator runs: the device of its first tensor there, else the one that it is told.
std::optional<c10::Device> device_of(const Stack& arguments) {
  std::optional<c10::Device> told;
  for (const auto& argument : arguments) {
    for (const auto& tensor : tensors_in(argument)) {
      if (is_on_device(tensor)) {
        return tensor.device();
      }
    }
    if (argument.isDevice()) {
      told = argument.toDevice();
    }
  }
  return told;
}

// An operator that has no kernel on the CPU, as the one that has.
c10::OperatorHandle on_host(const c10::OperatorHandle& op) {
  static const std::map<std::string, std::string> names = {
      {"aten::convolution_overrideable", "aten::convolution"},
      {"aten::convolution_backward_overrideable", "aten::convolution_backward"},
  };
  const auto found = names.find(op.schema().name());
  return found == names.end() ? op : c10::Dispatcher::singleton().findSchemaOrThrow(found->second.c_str(), "");
}

// The two have different arguments: the gradient of a bias is asked for by its size.
void adapt_to_host(const c10::OperatorHandle& op, Stack& arguments) {
  if (op.schema().name() == "aten::convolution_backward_overrideable") {
    const auto weight = arguments.at(2).toTensor();
    const bool is_transposed = arguments.at(6).toBool();
    const auto channels = is_transposed ? weight.size(1) * arguments.at(8).toInt() : weight.size(0);
    arguments.insert(arguments.begin() + 3, IValue(std::vector<int64_t>{channels}));
  }
}

// Where the arguments name a device, they name one of that type.
void told_device(Stack& arguments, c10::DeviceType type) {
  for (auto& value : arguments) {
    if (value.isDevice()) {
      value = c10::Device(type);
    }
  }
}

// Results without bytes, and written arguments as large as they will be; none if only the bytes tell.
std::optional<Stack> inferred(const c10::OperatorHandle& op, const Stack& arguments, Stack& written) {
  Stack stack = replaced(arguments, as_meta);
  told_device(stack, c10::DeviceType::Meta);
  for (auto& value : stack) {
    if (value.isGenerator()) {
      value = IValue();
    }
  }
  written = stack;
  try {
    op.callBoxed(&stack);
  } catch (const std::exception&) { // the kernel itself will say what is wrong, if anything is
    return std::nullopt;
  }
  return stack;
}

// Generators of the device are replaced by one for this call. Whether the operator takes any.
bool draw_numbers(const c10::FunctionSchema& schema, const c10::Device& device, Stack& arguments) {
  bool has_any = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto type = schema.arguments()[i].type()->str();
    if (type.find("Generator") != std::string::npos) {
      const bool is_given = arguments[i].isGenerator() && arguments[i].toGenerator().defined();
      arguments[i] = draw(is_given ? arguments[i].toGenerator() : default_generator(device.index()));
      has_any = true;
    }
  }
  return has_any;
}

bool draws_unasked(const c10::OperatorHandle& op, bool has_generator) {
  const auto tags = op.getTags();
  const bool draws = std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
  return draws && !has_generator;
}

// The argument that the result is, for one that an operator has written.
const IValue& written_argument(const c10::FunctionSchema& schema, const c10::Argument& result, const Stack& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
      return arguments[i];
    }
  }
  TORCH_CHECK(false, schema.name(), " gives a view, which the test accelerator has no kernel for");
}

at::Tensor empty_like_on(const c10::Device& device, const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.dtype()).device(device));
}

void run_on_host(const c10::OperatorHandle& op, Stack& stack) {
  at::AutoDispatchBelowAutograd below;
  op.callBoxed(&stack);
}

Uses uses_of(const c10::FunctionSchema& schema, const Stack& arguments) {
  Uses uses;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const auto& tensor : tensors_in(arguments[i])) {
      if (is_on_device(tensor)) {
        note_use(uses, tensor, is_written(schema.arguments()[i]));
      }
    }
  }
  return uses;
}

// The host waits until the current stream has come here, to use this.
void wait_to_use(const std::string& what, const Uses& uses) {
  auto& queue = current_queue();
  queue.submit([] {}, what, uses);
  queue.finish();
  raise_failure();
}

// Run it now, the stream having caught up: what it gives is known only from the bytes.
Stack run_now(const c10::OperatorHandle& op, const c10::FunctionSchema& schema, const Stack& arguments, bool draws) {
  wait_to_use(schema.name(), uses_of(schema, arguments));
  auto& queue = current_queue();
  const auto device = c10::Device(kDevice, current_device());
  // What is written, and what the kernel writes in place of it: it may resize that.
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(replaced(arguments[i], [&](const at::Tensor& tensor) {
      if (!is_on_device(tensor)) {
        return tensor;
      }
      if (!is_written(schema.arguments()[i])) {
        return bytes_of(tensor);
      }
      written.emplace_back(tensor, bytes_of(tensor).clone());
      return written.back().second;
    }));
  }
  told_device(stack, c10::DeviceType::CPU);
  if (draws) {
    auto host = at::detail::getDefaultCPUGenerator();
    const auto before = host.get_state();
    host.set_current_seed(draw(default_generator(device.index())).current_seed());
    run_on_host(op, stack);
    host.set_state(before);
  } else {
    run_on_host(op, stack);
  }
  for (const auto& [target, found] : written) {
    if (target.sizes() != found.sizes()) {
      target.resize_(found.sizes());
    }
    queue.finish(); // the poison of its memory
    bytes_of(target).copy_(found);
  }
  Stack results;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (schema.returns()[i].alias_info() != nullptr) {
      results.push_back(written_argument(schema, schema.returns()[i], arguments));
      continue;
    }
    results.push_back(replaced(stack[i], [&](const at::Tensor& tensor) {
      auto result = empty_like_on(device, tensor);
      queue.finish(); // the poison of its memory
      bytes_of(result).copy_(tensor);
      return result;
    }));
  }
  return results;
}

// Queue it, and give results whose bytes will be there.
Stack queue_up(
    const c10::OperatorHandle& op,
    const c10::FunctionSchema& schema,
    const Stack& arguments,
    const Stack& shapes,
    const Stack& written) {
  const auto device = c10::Device(kDevice, current_device());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_written(schema.arguments()[i])) {
      continue;
    }
    const auto given = tensors_in(arguments[i]);
    const auto found = tensors_in(written[i]);
    for (size_t j = 0; j < given.size(); ++j) {
      if (given[j].sizes() != found[j].sizes()) {
        given[j].resize_(found[j].sizes());
      }
    }
  }
  Uses uses = uses_of(schema, arguments);
  Stack results;
  std::vector<at::Tensor> made;
  std::vector<size_t> places; // of the results that are new
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (schema.returns()[i].alias_info() != nullptr) {
      results.push_back(written_argument(schema, schema.returns()[i], arguments));
      continue;
    }
    places.push_back(i);
    results.push_back(replaced(shapes[i], [&](const at::Tensor& shape) {
      const auto result = empty_like_on(device, shape);
      made.push_back(bytes_of(result));
      note_use(uses, result, /*writes=*/true);
      return result;
    }));
  }
  Stack given = replaced(arguments, [](const at::Tensor& tensor) {
    return is_on_device(tensor) ? bytes_of(tensor) : snapshot(tensor);
  });
  told_device(given, c10::DeviceType::CPU);
  const auto work = [op, given = std::move(given), made = std::move(made), places = std::move(places)] {
    Stack stack = given;
    run_on_host(op, stack);
    at::AutoDispatchBelowAutograd below;
    size_t next = 0;
    for (const auto place : places) {
      for (const auto& result : tensors_in(stack[place])) {
        const auto& target = made.at(next++);
        if (result.numel() > 0) { // the CPU leaves some empty that nobody will read
          TORCH_CHECK(result.sizes() == target.sizes(), op.schema().name(), " gave ", result.sizes(), " where its shape function said ", target.sizes());
          target.copy_(result);
        }
      }
    }
  };
  current_queue().submit(work, schema.name(), uses);
  return results;
}

// The kernel of every operator that has no other.
void run(const c10::OperatorHandle& asked, Stack* stack) {
  const auto& schema = asked.schema();
  Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  const auto device = device_of(arguments);
  TORCH_CHECK(device.has_value() && device->type() == kDevice, asked.schema().name(), " with no tensor of the device");
  const c10::DeviceGuard guard(*device);
  const auto op = on_host(asked);
  adapt_to_host(asked, arguments);
  const auto& host_schema = op.schema();
  const bool draws = draws_unasked(op, draw_numbers(host_schema, *device, arguments));
  std::optional<Stack> shapes;
  Stack written;
  if (!draws && gives_tensors_alone(host_schema)) {
    shapes = inferred(op, arguments, written);
  }
  const auto results = shapes.has_value() ? queue_up(op, host_schema, arguments, *shapes, written)
                                          : run_now(op, host_schema, arguments, draws);
  for (const auto& result : results) {
    stack->push_back(result);
  }
}

// -- memory -----------------------------------------------------------------------------------------------------------

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kDevice, current_device())));
  return at::detail::empty_generic(
      size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kDevice, current_device())));
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  if (format.has_value()) {
    tensor->empty_tensor_restride(*format);
  }
  const auto nbytes =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  if (nbytes > self.storage().nbytes()) {
    resize_storage(self.storage(), nbytes);
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    tensor->set_sizes_contiguous(size);
  } else {
    tensor->set_sizes_and_strides(size, stride);
  }
  const auto nbytes =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  if (self.numel() > 0 && nbytes > self.storage().nbytes()) {
    resize_storage(self.storage(), nbytes);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

void record_stream_of(at::Tensor& self, at::Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

// -- copies -----------------------------------------------------------------------------------------------------------

// As CUDA does, memory of the host that is not page-locked is read at once.
void queue_copy(const at::Tensor& target, const at::Tensor& source) {
  Uses uses;
  note_use(uses, target, /*writes=*/true);
  note_use(uses, source, /*writes=*/false);
  const auto work = [to = bytes_of(target), from = is_used_in_place(source) ? bytes_of(source) : snapshot(source)] {
    at::AutoDispatchBelowAutograd below;
    to.copy_(from);
  };
  current_queue().submit(work, is_on_device(source) && !is_on_device(target) ? kToHost : "copy_", uses);
}

void wait_for_queue() {
  current_queue().finish();
  raise_failure();
}

at::Tensor& copy_within(at::Tensor& target, const at::Tensor& source) {
  const c10::DeviceGuard guard(source.device());
  if (source.device() == target.device()) {
    queue_copy(target, source);
    return target;
  }
  // Both devices' current streams wait for each other, before the copy and after it.
  auto& from = current_queue();
  auto& to = queue_of(current_stream(target.device().index()));
  Event before;
  before.record(to);
  before.block(from);
  queue_copy(target, source);
  Event after;
  after.record(from);
  after.block(to);
  return target;
}

at::Tensor& copy_to_device(at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  const c10::DeviceGuard guard(target.device());
  queue_copy(target, source);
  if (!is_pinned(source.const_data_ptr())) {
    return target;
  }
  use_pinned(source.const_data_ptr(), current_queue());
  if (!non_blocking) {
    wait_for_queue();
  }
  return target;
}

at::Tensor& copy_to_host(at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  const c10::DeviceGuard guard(source.device());
  queue_copy(target, source);
  const bool pinned = is_pinned(target.const_data_ptr());
  if (pinned) {
    use_pinned(target.const_data_ptr(), current_queue());
  }
  if (!pinned || !non_blocking) {
    wait_for_queue();
  }
  return target;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.numel() == 0) {
    return self;
  }
  const auto expanded = source.expand_as(self);
  if (!is_on_device(source)) {
    return copy_to_device(self, expanded, non_blocking);
  }
  return is_on_device(self) ? copy_within(self, expanded) : copy_to_host(self, expanded, non_blocking);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  return copy_(to, source, non_blocking);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  Uses uses;
  note_use(uses, self, /*writes=*/false);
  wait_to_use("item", uses);
  return bytes_of(self).item();
}

// -- what the CPU has no kernel for -----------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  const auto mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  return {input * mask * scale, mask};
}

using Optional = const std::optional<at::Tensor>&;

bool is_there(Optional tensor) {
  return tensor.has_value() && tensor->defined();
}

at::Tensor with_bias(const at::Tensor& gates, Optional bias) {
  return is_there(bias) ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cx,
    Optional input_bias,
    Optional hidden_bias) {
  const auto gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid();
  const auto forget = parts[1].sigmoid();
  const auto cell = parts[2].tanh();
  const auto out = parts[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    Optional grad_hy,
    Optional grad_cy,
    const at::Tensor& cx,
    const at::Tensor& cy,
    const at::Tensor& workspace,
    bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto of_hy = is_there(grad_hy) ? *grad_hy : at::zeros_like(cy);
  const auto squashed = cy.tanh();
  auto of_cy = of_hy * out * (1 - squashed * squashed);
  if (is_there(grad_cy)) {
    of_cy = of_cy + *grad_cy;
  }
  const auto of_in = of_cy * cell * in * (1 - in);
  const auto of_forget = of_cy * cx * forget * (1 - forget);
  const auto of_cell = of_cy * in * (1 - cell * cell);
  const auto of_out = of_hy * squashed * out * (1 - out);
  const auto of_gates = at::cat({of_in, of_forget, of_cell, of_out}, 1);
  return {of_gates, of_cy * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hx,
    Optional input_bias,
    Optional hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (input[0] + hidden[0]).sigmoid();
  const auto update = (input[1] + hidden[1]).sigmoid();
  const auto fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const auto of_update = grad * (hx - fresh) * (1 - update) * update;
  const auto of_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const auto of_reset = of_fresh * hidden * (1 - reset) * reset;
  const auto of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  const auto of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  const auto sum = [&](const at::Tensor& gates) { return has_bias ? gates.sum(0) : at::Tensor(); };
  return {of_input, of_hidden, grad * update, sum(of_input), sum(of_hidden)};
}

} // namespace

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  auto* found = storage.unsafeGetStorageImpl();
  if (nbytes == found->nbytes()) {
    return;
  }
  const c10::DeviceGuard guard(found->device());
  auto memory = device_allocator()->allocate(nbytes);
  const size_t kept = std::min(nbytes, found->nbytes());
  if (kept > 0) {
    void* from = inside(found->_mutable_data_ptr_no_checks().get());
    void* to = inside(memory.get());
    current_queue().submit([=] { std::memcpy(to, from, kept); }, "resize_", {{to, kept, true}, {from, kept, false}});
  }
  found->set_data_ptr_noswap(std::move(memory));
  found->set_nbytes(nbytes);
}

} // namespace accelerator

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&accelerator::run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", accelerator::empty);
  m.impl("empty_strided", accelerator::empty_strided);
  m.impl("resize_", accelerator::resize_);
  m.impl("set_", accelerator::set_nothing);
  m.impl("set_.source_Tensor", accelerator::set_tensor);
  m.impl("set_.source_Storage", accelerator::set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", accelerator::set_storage);
  m.impl("record_stream", accelerator::record_stream_of);
  m.impl("copy_", accelerator::copy_);
  m.impl("_copy_from", accelerator::copy_from);
  m.impl("_local_scalar_dense", accelerator::local_scalar_dense);
  m.impl("native_dropout", accelerator::native_dropout);
  m.impl("_thnn_fused_lstm_cell", accelerator::lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", accelerator::lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", accelerator::gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", accelerator::gru_cell_backward);
  // These have kernels for any device, which raise.
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&accelerator::run>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&accelerator::run>());
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
}

// -- autocast: the common operators, as on CUDA -----------------------------------------------------------------------

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

using namespace at::autocast; // the macros name what is there

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv3d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32_set_opt_dtype)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32_set_opt_dtype)
  KERNEL_PRIVATEUSEONE(cat, promote)
}
