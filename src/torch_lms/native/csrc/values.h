// Arguments and results of operators, as the dispatcher has them, and the tensors among them.

#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace torch_lms {

// Calls `visit` with each tensor of an argument or result that is defined, until it returns false. Whether it never did.
template <typename Visit>
bool every_tensor(const c10::IValue& value, const Visit& visit) {
  const auto one = [&](const at::Tensor& tensor) { return !tensor.defined() || visit(tensor); };
  if (value.isTensor()) {
    return one(value.toTensor());
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (!one(tensor)) {
        return false;
      }
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && !one(*tensor)) {
        return false;
      }
    }
  }
  return true;
}

// The same value, with what `change` makes of each such tensor in its place.
template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorList()) {
      changed.push_back(tensor.defined() ? change(tensor) : tensor);
    }
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      changed.push_back(tensor.has_value() && tensor->defined() ? std::optional(change(*tensor)) : tensor);
    }
    return changed;
  }
  return value;
}

}  // namespace torch_lms
