// SPDX-License-Identifier: BSD-3-Clause
// Makes files of torch.save byte by byte, good ones and broken ones.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>

#include "lockstep/checkpoint/torch_file/zip_records.h"

namespace lockstep::testing {

// An entry, with what its records say of it.
struct ZippedFile {
  std::string name;
  std::string data;
  std::uint16_t method = 0;
  std::uint16_t flags = 0;
  // Added to the truth.
  std::int64_t crc = 0;
  std::int64_t size = 0;            // in both records
  std::int64_t directory_size = 0;  // in the directory only
  std::int64_t offset = 0;
  std::string local_name = {};  // instead of the name
};

inline std::string zip_bytes(const std::vector<ZippedFile>& files, const std::string& after = "") {
  std::string bytes;
  std::string directory;
  for (const auto& file : files) {
    const auto crc = static_cast<std::uint32_t>(
        file.crc + static_cast<std::int64_t>(crc32_z(
                       0, reinterpret_cast<const Bytef*>(file.data.data()), file.data.size())));
    const auto size =
        static_cast<std::uint32_t>(file.size + static_cast<std::int64_t>(file.data.size()));
    const auto listed = static_cast<std::uint32_t>(file.directory_size + size);
    const auto offset =
        static_cast<std::uint32_t>(file.offset + static_cast<std::int64_t>(bytes.size()));
    const std::string name = file.local_name.empty() ? file.name : file.local_name;
    zip::append(bytes, zip::kLocalHeader, std::uint16_t{0}, file.flags, file.method,
                std::uint32_t{0}, crc, size, size, static_cast<std::uint16_t>(name.size()),
                std::uint16_t{0});
    bytes += name + file.data;
    zip::append(directory, zip::kCentralHeader, std::uint32_t{0}, file.flags, file.method,
                std::uint32_t{0}, crc, size, listed, static_cast<std::uint16_t>(file.name.size()),
                std::uint16_t{0}, std::uint16_t{0}, std::uint16_t{0}, std::uint16_t{0},
                std::uint32_t{0}, offset);
    directory += file.name;
  }
  const auto count = static_cast<std::uint16_t>(files.size());
  const auto offset = static_cast<std::uint32_t>(bytes.size());
  bytes += directory;
  zip::append(bytes, zip::kEndRecord, std::uint16_t{0}, std::uint16_t{0}, count, count,
              static_cast<std::uint32_t>(directory.size()), offset, std::uint16_t{0});
  return bytes + after;
}

// A file of torch.save with this pickle, without its protocol and end, and this storage "0".
inline std::string torch_bytes(const std::string& pickle, const std::string& storage = "") {
  return zip_bytes({{"a/data.pkl", "\x80\x02" + pickle + "."}, {"a/data/0", storage}});
}

// Pieces of pickles.
inline std::string pickled(const std::string& text) {
  std::string bytes = "X";
  zip::append(bytes, static_cast<std::uint32_t>(text.size()));
  return bytes + text;
}

inline std::string pickled(int number) {
  std::string bytes = "J";
  zip::append(bytes, static_cast<std::int32_t>(number));
  return bytes;
}

inline std::string pickled_tuple(const std::vector<int>& numbers) {
  std::string bytes = "(";
  for (const int number : numbers) bytes += pickled(number);
  return bytes + "t";
}

inline std::string pickled_storage(const std::string& type, const std::string& key, int count) {
  return "(" + pickled("storage") + "c" + type + "\n" + pickled(key) + pickled("cpu") +
         pickled(count) + "tQ";
}

const std::string kNoHooks = "ccollections\nOrderedDict\n)R";

inline std::string pickled_tensor(const std::string& storage, int offset,
                                  const std::vector<int>& sizes, const std::vector<int>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickled(offset) + pickled_tuple(sizes) +
         pickled_tuple(strides) + "\x89" + kNoHooks + "tR";
}

}  // namespace lockstep::testing
