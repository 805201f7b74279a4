// SPDX-License-Identifier: BSD-3-Clause
// Public. Windows of a file of tokens, for language models. The file is mapped into memory, not
// read: it may be larger than the memory, and ranks of one machine share its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include <torch/data/datasets/base.h>

namespace lockstep {

// The type of a token in the file, in little-endian order: 16 bits for vocabularies of up to 65536
// tokens.
enum class TokenType { uint16, uint32 };

struct TokenDatasetOptions {
  // Tokens of a sample. Required.
  std::int64_t window = 0;
  TokenType type = TokenType::uint16;
  // A larger token is refused when its window is read, since a model's embedding has no row for it.
  // 0: tokens are not checked.
  std::int64_t vocabulary = 0;
};

// A file that has tokens and nothing else, such as NumPy's array.tofile() writes. Samples are
// consecutive windows; an incomplete window at the end is left out. Copies share the mapping. get()
// may be called from any thread.
//
// UsageErrors name the file: it is missing, shorter than a window and its target, or not a whole
// number of tokens. The file must not become shorter while it is in use: get() throws BackendError
// if it has, but a process that reads it at that very moment gets SIGBUS.
class TokenDataset : public torch::data::datasets::Dataset<TokenDataset> {
 public:
  TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options);

  // The tokens of a window, and the token that follows each of them: int64 [window] both, which
  // share memory. UsageError for an index that is not below size().
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // The number of tokens in the file.
  std::int64_t tokens() const;

 private:
  class Mapping;

  std::shared_ptr<const Mapping> mapping_;
  TokenDatasetOptions options_;
};

}  // namespace lockstep
