// SPDX-License-Identifier: BSD-3-Clause
// Public. Writes event files for TensorBoard, like Python's torch.utils.tensorboard.SummaryWriter.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Writes one event file in a folder. A resumed run adds another file, and calls purge() first, in
// FitOptions::resumed. Usually only rank 0 has a writer. A tag such as "loss/train" groups charts
// by the part before the slash. `step` is the x axis. Bytes of a tag or a text that are not UTF-8
// are replaced by U+FFFD: a reader would stop at such an event.
//
// Events are collected in memory, and written by flush(), by the destructor, when 64 KiB have
// gathered, and by the first call that comes two seconds after the last write. Used by one thread
// at a time.
//
// A failing or full disk does not end training: from then on events are dropped, after a warning
// (TORCH_WARN) with the path and the system's reason, which error() returns.
class TensorBoardWriter {
 public:
  // Makes the folder, and in it events.out.tfevents.<seconds>.<host>.<pid>.<number>. BackendError
  // if that is not possible.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  // Writes the events that are left.
  ~TensorBoardWriter();
  TensorBoardWriter(TensorBoardWriter&&) noexcept;
  TensorBoardWriter& operator=(TensorBoardWriter&&) noexcept;

  // TensorBoard keeps scalars as floats.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  // Adds the distribution of a tensor's elements, of any real type, layout, shape and device, with
  // Python's default buckets: their limits grow by 10 % from 1e-12 to 1e20, and the same for
  // negative numbers. Infinite and NaN elements, as in a gradient that GradScaler skips, are left
  // out, with a warning the first time. UsageError if the tensor is undefined, empty or complex.
  void add_histogram(std::string_view tag, const at::Tensor& values, std::int64_t step);

  // Adds a text that is shown as Markdown.
  void add_text(std::string_view tag, std::string_view text, std::int64_t step);

  // Makes TensorBoard drop events of earlier files in the folder from this step on. Call it in a
  // resumed run before its first event: otherwise the steps after the checkpoint appear twice.
  void purge(std::int64_t step);

  void flush();

  // Returns why events were dropped; empty if none were.
  std::string error() const;

  const std::filesystem::path& file() const;

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace lockstep
