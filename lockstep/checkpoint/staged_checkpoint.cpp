// SPDX-License-Identifier: BSD-3-Clause
// Copies parts into memory, and sends them to rank 0.
#include "lockstep/checkpoint/staged_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"

namespace lockstep {
namespace {

// A multiple of the size of every element type, which aligns its elements.
constexpr std::int64_t kWidest = 16;
// Bytes that rank 0 receives at once, so that it needs little memory besides the checkpoint's.
constexpr std::int64_t kPiece = 8 << 20;

constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kWidest - 1) / kWidest * kWidest;
}

// Tensors stay on the host also where the group is on GPUs: this thread must not wait for the
// streams that training uses.
void send(const at::Tensor& tensor, ProcessGroup& group) {
  group.send(tensor, 0).wait();
}

at::Tensor receive(at::IntArrayRef sizes, at::ScalarType type, int rank, ProcessGroup& group) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(type));
  group.recv(tensor, rank).wait();
  return tensor;
}

}  // namespace

void StagedCheckpoint::copy(const std::vector<FileToSave>& files, int rank) {
  const at::NoGradGuard no_grad;
  files_.clear();
  runs_.clear();
  std::vector<at::Tensor> sources;
  std::int64_t total = 0;
  std::int64_t own = 0;
  for (const FileToSave& file : files) {
    const SafetensorsLayout layout = lay_out_safetensors(file.tensors, {{"format", "pt"}});
    const auto bytes = static_cast<std::int64_t>(layout.data_bytes);
    files_.push_back({file.name, layout.head, total, bytes});
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const std::int64_t begin = total + static_cast<std::int64_t>(layout.entries[i].begin);
      const auto width = static_cast<std::int64_t>(file.tensors[i].type->bytes);
      for (const PartToSave& part : file.tensors[i].parts) {
        runs_.push_back({begin + part.begin * width, part.elements.numel() * width});
        sources.push_back(part.elements);
        own += aligned(runs_.back().bytes);
      }
    }
    total += aligned(bytes);
  }
  reserve(rank == 0 ? total : own);
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  std::int64_t next = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    std::byte* const begin = memory + (rank == 0 ? runs_[i].offset : next);
    at::from_blob(begin, sources[i].sizes(), at::TensorOptions(sources[i].scalar_type()))
        .copy_(sources[i]);
    next += aligned(runs_[i].bytes);
  }
}

void StagedCheckpoint::reserve(std::int64_t bytes) {
  used_ = bytes;
  if (memory_.defined() && memory_.numel() >= bytes) return;
  memory_.reset();
  memory_ = at::empty({bytes}, at::TensorOptions(at::kByte));
}

void StagedCheckpoint::collect(ProcessGroup& group) {
  if (group.rank() == 0) {
    for (int rank = 1; rank < group.size(); ++rank) receive_from(rank, group);
    return;
  }
  const auto count = static_cast<std::int64_t>(runs_.size());
  send(at::tensor({count, used_}, at::kLong), group);
  if (count > 0) {
    const at::Tensor table = at::empty({count, 2}, at::kLong);
    std::memcpy(table.data_ptr(), runs_.data(), runs_.size() * sizeof(Run));
    send(table, group);
  }
  for (std::int64_t sent = 0; sent < used_; sent += kPiece) {
    send(memory_.narrow(0, sent, std::min(kPiece, used_ - sent)), group);
  }
}

void StagedCheckpoint::receive_from(int rank, ProcessGroup& group) {
  const at::Tensor sizes = receive({2}, at::kLong, rank, group);
  const auto count = sizes[0].item<std::int64_t>();
  const auto bytes = sizes[1].item<std::int64_t>();
  std::vector<Run> runs(static_cast<std::size_t>(count));
  if (count > 0) {
    const at::Tensor table = receive({count, 2}, at::kLong, rank, group);
    std::memcpy(runs.data(), table.data_ptr(), runs.size() * sizeof(Run));
  }
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  // The next run to fill, and the byte at which it begins in the peer's memory.
  std::size_t run = 0;
  std::int64_t run_begin = 0;
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, bytes);
    const at::Tensor piece = receive({end - begin}, at::kByte, rank, group);
    const auto* const received = static_cast<const std::byte*>(piece.data_ptr());
    for (; run < runs.size(); run_begin += aligned(runs[run++].bytes)) {
      const std::int64_t from = std::max(run_begin, begin);
      const std::int64_t to = std::min(run_begin + runs[run].bytes, end);
      if (from < to) {
        std::memcpy(memory + runs[run].offset + (from - run_begin), received + (from - begin),
                    static_cast<std::size_t>(to - from));
      }
      if (run_begin + aligned(runs[run].bytes) > end) break;  // the rest comes later
    }
  }
}

std::vector<CheckpointFile> StagedCheckpoint::files() const {
  const auto* const memory = static_cast<const std::byte*>(memory_.data_ptr());
  std::vector<CheckpointFile> files;
  for (const StagedFile& file : files_) {
    files.push_back({file.name,
                     {std::as_bytes(std::span(file.head)),
                      {memory + file.offset, static_cast<std::size_t>(file.bytes)}}});
  }
  return files;
}

}  // namespace lockstep
