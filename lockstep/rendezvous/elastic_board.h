// SPDX-License-Identifier: BSD-3-Clause
// What the launcher of an elastic job shares with its ranks: a mapped file with the number of the
// newest generation and the progress of each member, and keys in the launcher's store.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Each access is one atomic load or store, without a system call. Thread-safe.
class ElasticBoard {
 public:
  // The most members that a job may have, including lost ones.
  static constexpr int kMostMembers = 4096;
  // The progress of a member that has completed its training.
  static constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max() - 1;
  // The progress of a member that waits for the launcher to end it: no generation has it any more.
  static constexpr std::int64_t kLeft = kEnd - 1;

  // Makes the file, which must not exist. BackendError if the system refuses.
  static ElasticBoard create(const std::string& path);
  // Maps the file of a launcher. BackendError if it is not there or is no board.
  static ElasticBoard open(const std::string& path);

  // The newest generation's number. Its members are in the store before it is here.
  int generation() const noexcept;
  void set_generation(int number) noexcept;

  // A number that grows when the member has completed a step (an even number: twice the steps that
  // it has completed), and is odd while it waits for the others in the next one, or before it, as
  // in an evaluation. -1 before its first note.
  std::int64_t progress(int member) const noexcept;
  void set_progress(int member, std::int64_t progress) noexcept;

  // The newest generation in which the member has trained: in which it had the state of the others,
  // at least. -1 before.
  int trained_in(int member) const noexcept;
  void set_trained_in(int member, int generation) noexcept;

 private:
  struct Contents;
  struct Unmap {
    void operator()(Contents* contents) const;
  };
  explicit ElasticBoard(int fd);

  std::unique_ptr<Contents, Unmap> contents_;
};

// The file's name in the folder of the launcher's store.
inline constexpr const char* kBoardName = "board";

// The key under which the launcher's store holds a generation's members, and where they meet.
std::string members_key(int generation);
struct OpenGeneration {
  std::vector<int> members{};
  // As in Generation.
  std::string store{};
};
std::string encode_members(const OpenGeneration& generation);
// BackendError if the bytes are no members.
OpenGeneration decode_members(std::string_view bytes);

// The key that a newcomer sets when it can train.
std::string join_key(int member);

// Begins the keys that the members of a generation use among themselves.
std::string generation_prefix(int generation);

}  // namespace lockstep
