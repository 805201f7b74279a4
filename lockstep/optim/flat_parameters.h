// SPDX-License-Identifier: BSD-3-Clause
// Parameters as flat memory, of which each rank owns one part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/piece.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::optim {

// Elements of a parameter, counted in the order in which they lie in memory.
struct ParameterPart {
  std::size_t number;  // of the parameter
  at::Tensor parameter;
  ElementRange range;
};

// Parameters of one type on one device share a buffer. A rank's part of it begins and ends at a
// cache line, wherever parameters do.
class FlatParameters {
 public:
  // Collective. Moves the parameters' values into memory from group.empty; the tensors stay the
  // same objects. A parameter with gaps between its elements becomes contiguous.
  FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters, ProcessGroup& group);

  // What this rank owns, in the order of the parameters.
  const std::vector<ParameterPart>& own_parts() const { return own_parts_; }

  // UsageError, which names the parameter by its number, if one has been moved elsewhere.
  void check() const;

  // Collective. Every rank gets the elements that their owners have changed.
  void exchange();

  // Collective. What the ranks hold of a state, as one tensor a parameter, in its shape and in the
  // type of its state: parts[i] belongs to own_parts()[i], and zeros stand for an undefined one.
  std::vector<at::Tensor> whole(const std::vector<at::Tensor>& parts);

 private:
  struct Buffer {
    at::Tensor memory;
    std::int64_t share;                 // a rank's elements
    std::vector<std::size_t> members;   // numbers of the parameters
    std::vector<std::int64_t> offsets;  // of each member
  };

  void lay_out(Buffer& buffer);

  std::string_view owner_;
  std::vector<at::Tensor> parameters_;
  ProcessGroup& group_;
  std::vector<Buffer> buffers_;
  std::vector<ParameterPart> own_parts_;
};

}  // namespace lockstep::optim
