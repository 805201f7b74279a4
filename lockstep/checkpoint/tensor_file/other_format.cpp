// SPDX-License-Identifier: BSD-3-Clause
// Compares the first bytes with the signatures of other formats.
#include "lockstep/checkpoint/tensor_file/other_format.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

struct Signature {
  std::size_t offset;
  std::string_view bytes;
  std::string_view text;
};

constexpr std::string_view kOldTorchFile =
    "it is a pickle that is not in a zip archive; files from before PyTorch 1.6 are not read: load "
    "it in Python, and save it again";
constexpr std::string_view kWebPage =
    "it is a web page, as a failed download leaves it; download the file itself";
constexpr std::string_view kCompressed =
    "it is compressed (gzip, xz, zstd, bzip2 or 7z); unpack it";

constexpr std::array kSignatures{
    Signature{0, "PK\x03\x04",
              "it is a zip archive, as torch.save writes; read it with "
              "read_torch_file"},
    Signature{0, "\x80\x02", kOldTorchFile},
    Signature{0, "\x80\x03", kOldTorchFile},
    Signature{0, "\x80\x04", kOldTorchFile},
    Signature{0, "\x80\x05", kOldTorchFile},
    Signature{0, "GGUF", "it is a GGUF file (llama.cpp); convert it to safetensors"},
    Signature{0, "\x89HDF\r\n\x1a\n",
              "it is an HDF5 file, as Keras writes; convert it to safetensors in Python"},
    Signature{0, "\x93NUMPY",
              "it is an array of NumPy (numpy.save); save it in Python with "
              "safetensors.numpy.save_file"},
    Signature{4, "TFL3", "it is a model of TensorFlow Lite; convert it to safetensors in Python"},
    Signature{257, "ustar", "it is a tar archive; unpack it"},
    Signature{0, "\x1f\x8b", kCompressed},
    Signature{0,
              "\xfd"
              "7zXZ",
              kCompressed},
    Signature{0, "\x28\xb5\x2f\xfd", kCompressed},
    Signature{0, "BZh", kCompressed},
    Signature{0, "7z\xbc\xaf\x27\x1c", kCompressed},
    Signature{0, "version https://git-lfs",
              "it is a pointer of Git LFS instead of the file; get "
              "the file with `git lfs pull`"},
    Signature{0, "<!DOCTYPE", kWebPage},
    Signature{0, "<!doctype", kWebPage},
    Signature{0, "<html", kWebPage},
    Signature{0, "<?xml", kWebPage},
};

std::string first_bytes(const StoredBytes& bytes, std::size_t most) {
  std::string begin(std::min(bytes.size, most), '\0');
  bytes.read(0, std::as_writable_bytes(std::span(begin)));
  return begin;
}

// A message of protobuf whose first field is a version of ONNX, and whose next is a string or a
// number. TensorFlow's saved_model.pb begins in the same way, with version 1.
bool is_onnx(std::string_view begin) {
  constexpr unsigned char kLeast = 3;
  constexpr unsigned char kMost = 30;
  if (begin.size() < 3 || begin[0] != '\x08') return false;
  const auto version = static_cast<unsigned char>(begin[1]);
  return version >= kLeast && version <= kMost && (begin[2] == '\x12' || begin[2] == '\x1a');
}

// Whether the text begins with an object of JSON, after the byte order mark that some editors
// write.
bool begins_object(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

}  // namespace

bool is_json_text(const StoredBytes& bytes) {
  // The length of a safetensors file's header is at most 100,000,000: its upper bytes are zero.
  const std::string begin = first_bytes(bytes, 8);
  return begins_object(begin) && begin.find('\0') == std::string::npos;
}

std::string other_format(const StoredBytes& bytes) {
  const std::string begin = first_bytes(bytes, std::size_t{64} << 10);
  if (begin.empty()) return "it is empty; copy or download it again";
  for (const Signature& signature : kSignatures) {
    if (begin.size() < signature.offset + signature.bytes.size()) continue;
    if (begin.compare(signature.offset, signature.bytes.size(), signature.bytes) == 0) {
      return std::string(signature.text);
    }
  }
  if (is_onnx(begin)) return "it is an ONNX model; convert it to safetensors in Python";
  if (begins_object(begin) && is_json_text(bytes)) {
    if (begin.find("\"weight_map\"") != std::string::npos) {
      return "it is an index of sharded files; read it by its path with read_safetensors, or, of "
             "files of torch.save, each part with read_torch_file";
    }
    return "it is a text of JSON; name the file that has the tensors";
  }
  if (begin.find_first_not_of('\0') == std::string::npos) {
    return "it begins with zeros, as an incomplete copy does; copy or download it again";
  }
  return "";
}

fs::path tensor_file_in(const fs::path& folder) {
  constexpr int kMostEntries = 10'000;
  constexpr std::array kEndings{".safetensors.index.json"sv,
                                "model.safetensors"sv,
                                ".safetensors"sv,
                                ".pt"sv,
                                ".pth"sv,
                                ".ckpt"sv,
                                ".bin"sv};
  std::error_code error;
  if (fs::exists(folder / "latest" / "model.safetensors", error)) {
    return folder / "latest" / "model.safetensors";
  }
  fs::path best;
  std::size_t best_rank = kEndings.size();
  int seen = 0;
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && ++seen < kMostEntries; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    for (std::size_t rank = 0; rank <= best_rank && rank < kEndings.size(); ++rank) {
      if (!name.ends_with(kEndings[rank])) continue;
      if (rank < best_rank || name < best.filename().string()) best = entry->path();
      best_rank = rank;
      break;
    }
  }
  return best;
}

StoredBytes bytes_in_tensor_file(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) {
    const fs::path inside = tensor_file_in(file);
    throw UsageError(fmt::format(
        "{}: this is a folder{}", file.string(),
        inside.empty()
            ? "; give a file of tensors"
            : fmt::format("; give a file of tensors in it, such as {}", inside.string())));
  }
  return bytes_in_file(file);
}

}  // namespace lockstep
