// SPDX-License-Identifier: BSD-3-Clause
// Public. Reads and writes safetensors files: named tensors and metadata, which Python's package
// safetensors reads and writes too.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/safetensors/safetensors_entry.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// A file whose header has been read and checked completely; tensors are read one by one. Keeps the
// file open. Const functions may be called from several threads at once.
//
// The file may be the index of sharded files, such as Hugging Face's model.safetensors.index.json:
// then all files that it names are opened, and their entries follow each other in the order of the
// files' names. They must be in the index's folder, and have the tensors that the index expects in
// them, and no others.
//
// CheckpointError, naming the file, the entry and the value, if the file breaks a rule of the
// format: every byte of the data must belong to exactly one tensor. UsageError if there is no such
// file, or if it is a folder. Safe for hostile files: allocates no more than a small multiple of
// the header for its entries, and no more than the data's size for tensors. Names may have up to
// 4,096 bytes; a file may have up to 250,000 tensors.
//
// An entry whose type this libtorch lacks, or that was added to the format later (F4), does not
// keep the others from being read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);
  // Reads from memory, which must outlive this object; `name` replaces the file's name in errors.
  SafetensorsFile(std::span<const std::byte> bytes, std::string name);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  // The entries, in the header's order.
  const std::vector<SafetensorsEntry>& entries() const;
  // For an index, the metadata of all its files; a key in several files has the value of the first.
  const std::map<std::string, std::string>& metadata() const;

  // Whether this libtorch has the entry's type.
  bool can_read(std::size_t index) const;

  // Returns the tensor of this entry, on the CPU and contiguous, in memory of its own.
  // CheckpointError unless can_read(index), if memory is lacking, or if an element of type bool is
  // neither 0 nor 1; BackendError if the disk fails.
  at::Tensor read(std::size_t index) const;

  // Returns the bytes of an entry of any type, as a tensor of one dimension and of type kByte.
  at::Tensor read_bytes(std::size_t index) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

struct Safetensors {
  std::vector<NamedTensor> tensors;  // in the header's order
  std::map<std::string, std::string> metadata;
};

// Reads all tensors; for an index, the tensors of all its files. Throws what SafetensorsFile
// throws; the error for entries of types that this libtorch lacks names them.
Safetensors read_safetensors(const std::filesystem::path& file);

// Writes the tensors, in their order, and the metadata. Replaces the file atomically: if the
// process is killed or the disk is full, an older file stays as it is. Blocks until the file is on
// the disk.
//
// Tensors may be on any device and have any strides; at most one at a time is copied. Tensors that
// share memory, as tied weights do, are written once for each name, so that Python's
// safetensors.torch.load_file returns every name of a state dict.
//
// UsageError if two names are the same, if a name is longer than SafetensorsFile reads, is not
// UTF-8 or is "__metadata__", if a tensor is undefined, sparse or quantized, or if the path cannot
// be written; BackendError if the disk fails or is full. Then the older file is as it was, unless
// the disk failed at the very end: the new file may then be in its place, complete.
void write_safetensors(const std::filesystem::path& file, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
