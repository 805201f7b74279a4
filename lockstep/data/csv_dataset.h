// SPDX-License-Identifier: BSD-3-Clause
// Public. Tables of numbers from CSV files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/data/datasets/base.h>

namespace lockstep {

struct CsvDatasetOptions {
  // The columns to predict, by their names in the header, or by their numbers from 0 if the file
  // has no header. By default the last column.
  std::vector<std::string> targets = {};
  // true: the target is the number of a class. Then there is one target column, of whole numbers
  // from 0.
  bool classes = false;
  char delimiter = ',';
};

// Reads a file of numbers into memory, as float32. The first line is a header if one of its fields
// is not a number. Fields may be in double quotes, and may have spaces and tabs around them. Lines
// end in \n or \r\n; empty lines are left out. Copies share the tensors.
//
// UsageErrors name the file, and where it is one the line, the column and the field: a field that
// is empty, not a finite decimal number or too large for float32, a line with another number of
// fields than the first, a target that the header does not have, a file without rows.
class CsvDataset : public torch::data::datasets::Dataset<CsvDataset> {
 public:
  explicit CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options = {});

  // One row: float32 [columns], and float32 [targets], or int64 [] with .classes.
  torch::data::Example<> get(std::size_t index) override;
  c10::optional<std::size_t> size() const override;

  // All rows: float32 [N, columns], and float32 [N, targets], or int64 [N] with .classes.
  const at::Tensor& inputs() const { return inputs_; }
  const at::Tensor& targets() const { return targets_; }
  // The names of the columns of inputs(), in their order; their numbers without a header.
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
  std::vector<std::string> columns_;
};

}  // namespace lockstep
