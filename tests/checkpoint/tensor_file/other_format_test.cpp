// SPDX-License-Identifier: BSD-3-Clause
// Files that are neither safetensors nor torch.save: each error names what it is, and the way out.
#include "lockstep/checkpoint/tensor_file/other_format.h"

#include <filesystem>

#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/torch_bytes.h"
#include "data/idx_bytes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string format_of(const std::string& bytes) {
  return other_format(bytes_in_memory(as_bytes(bytes)));
}

TEST(OtherFormat, IsNamedByBothReaders) {
  std::string tar(300, 'n');
  tar.replace(257, 5, "ustar");
  const std::string zeros(100, '\0');
  const std::string onnx = "\x08\x0a\x12\x07pytorch\x1a\x05";
  const std::vector<std::pair<std::string, std::string>> files{
      {"GGUF\x03" + zeros, "it is a GGUF file (llama.cpp); convert it to safetensors"},
      {"\x89HDF\r\n\x1a\n" + zeros, "it is an HDF5 file"},
      {"\x93NUMPY" + zeros, "it is an array of NumPy"},
      {"\x1c" + std::string(3, '\0') + "TFL3" + zeros, "it is a model of TensorFlow Lite"},
      {tar, "it is a tar archive; unpack it"},
      {gzip("a text of some length"), "it is compressed"},
      {"\xfd"
       "7zXZ" +
           zeros,
       "it is compressed"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
       "it is a pointer of Git LFS instead of the file; get the file with `git lfs pull`"},
      {"<!DOCTYPE html><html>Sign in</html>", "it is a web page, as a failed download leaves it"},
      {onnx + zeros, "it is an ONNX model"},
      {"\x80\x04\x95\x10" + zeros, "it is a pickle that is not in a zip archive"},
      {R"({"metadata": {"total_size": 8}, "weight_map": {"a": "b.bin"}})",
       "it is an index of sharded files"},
      {R"({"architectures": ["Llama"]})", "it is a text of JSON; name the file that has the"},
      {zeros, "it begins with zeros, as an incomplete copy does"}};
  for (const auto& [bytes, message] : files) {
    EXPECT_THAT([&] { SafetensorsFile(as_bytes(bytes), "some-file"); },
                ThrowsMessage<CheckpointError>(HasSubstr("some-file: " + message)))
        << message;
    EXPECT_THAT([&] { read_torch_file(as_bytes(bytes), "some-file"); },
                ThrowsMessage<CheckpointError>(HasSubstr("some-file: " + message)))
        << message;
  }
  EXPECT_THAT(
      [] { SafetensorsFile(as_bytes(torch_bytes("N")), "net.pt"); },
      ThrowsMessage<CheckpointError>(
          "net.pt: it is a zip archive, as torch.save writes; read it with read_torch_file"));
}

TEST(OtherFormat, IsNothingForFilesOfTensors) {
  EXPECT_EQ(format_of(safetensors_bytes("{}", "")), "");
  // A header of 123 bytes begins with a brace.
  std::string header = "{}";
  header.resize('{', ' ');
  EXPECT_FALSE(is_json_text(bytes_in_memory(as_bytes(safetensors_bytes(header, "")))));
  EXPECT_TRUE(SafetensorsFile(as_bytes(safetensors_bytes(header, "")), "123").entries().empty());
}

// Every beginning of it, and every byte changed, is read without a crash.
TEST(OtherFormat, ReadsAnything) {
  for (int first = 0; first < 256; ++first) {
    for (std::size_t size = 0; size < 12; ++size) {
      std::string bytes(size, static_cast<char>(first));
      EXPECT_LT(format_of(bytes).size(), 300u);
      EXPECT_THROW(read_torch_file(as_bytes(bytes), "some-file"), CheckpointError);
    }
  }
}

TEST(OtherFormat, OfAFolderNamesAFileInIt) {
  const TemporaryFolder folder;
  const auto expect_named = [&](const std::string& name) {
    const std::string message =
        folder.path().string() + ": this is a folder; give a file of tensors";
    const std::string rest =
        name.empty() ? "" : " in it, such as " + (folder.path() / name).string();
    EXPECT_THAT([&] { read_safetensors(folder.path()); },
                ThrowsMessage<UsageError>(message + rest));
    EXPECT_THAT([&] { read_torch_file(folder.path()); }, ThrowsMessage<UsageError>(message + rest));
  };
  expect_named("");
  folder.write("config.json", "{}");
  folder.write("pytorch_model.bin", "");
  expect_named("pytorch_model.bin");
  folder.write("model-2.safetensors", "");
  folder.write("model-1.safetensors", "");
  expect_named("model-1.safetensors");
  folder.write("adapter.safetensors", "");
  folder.write("model.safetensors", "");
  expect_named("model.safetensors");
  folder.write("model.safetensors.index.json", "{}");
  expect_named("model.safetensors.index.json");
  std::filesystem::create_directory(folder.path() / "latest");
  folder.write("latest/model.safetensors", "");
  expect_named("latest/model.safetensors");
}

}  // namespace
}  // namespace lockstep::testing
