// SPDX-License-Identifier: BSD-3-Clause
// The launcher's store with good, large and malformed requests.
#include "lockstep/rendezvous/local_store_server.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/net/unix_socket.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/rendezvous/store_protocol.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using store_protocol::encode_length;
using store_protocol::encode_request;
using store_protocol::Operation;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr std::size_t kMebibyte = 1 << 20;

Deadline soon() {
  return Deadline::after(30s);
}

// Bytes of this process in memory.
std::int64_t memory_in_use() {
  std::int64_t all = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Serves from a thread, as the launcher's loop does from its own.
class Serving {
 public:
  explicit Serving(LocalStoreServer::Values initial = {}) {
    for (auto& [key, value] : initial) server.set(key, std::move(value));
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd entry{server.descriptor(), POLLIN, 0};
        ::poll(&entry, 1, 10);
        server.serve();
      }
    });
  }

  // Only when nothing is being served any more.
  LocalStoreServer& stop() {
    thread_.request_stop();
    thread_.join();
    return server;
  }

  LocalStoreServer server;

 private:
  std::jthread thread_;
};

TEST(LocalStore, GetsWhatWasSet) {
  Serving serving;
  LocalStore store(serving.server.path());
  store.set("key", "value");
  store.set("", std::string("\0\xff", 2));
  EXPECT_EQ(store.get("key", soon()), "value");
  EXPECT_EQ(store.get("", soon()), std::string("\0\xff", 2));
  store.set("key", "newer");
  EXPECT_EQ(store.get("key", soon()), "newer");
}

TEST(LocalStore, GetWaitsForTheKey) {
  Serving serving;
  LocalStore store(serving.server.path());
  std::string first;
  std::string second;
  {
    std::jthread one([&] { first = store.get("late", soon()); });
    std::jthread two([&] { second = store.get("late", soon()); });
    store.set("other", "1");
    store.set("late", "here");
  }
  EXPECT_EQ(first, "here");
  EXPECT_EQ(second, "here");
}

TEST(LocalStore, GetNamesTheKeyAtItsDeadlineAndTheStoreGoesOn) {
  Serving serving;
  LocalStore store(serving.server.path());
  EXPECT_THAT([&] { store.get("never", Deadline::after(20ms)); },
              ThrowsMessage<TimeoutError>(HasSubstr("\"never\" within 20 ms")));
  store.set("never", "after all");
  EXPECT_EQ(store.get("never", soon()), "after all");
}

TEST(LocalStore, EndsWaitsForDroppedKeys) {
  LocalStoreServer server;
  const auto serve_until = [&](const std::function<bool()>& done) {
    while (!done()) {
      pollfd entry{server.descriptor(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      server.serve();
    }
  };
  const auto get_ends = [&](const char* key, const std::function<void()>& meanwhile) {
    std::atomic<bool> ended = false;
    std::jthread waiting([&] {
      EXPECT_THROW(LocalStore(server.path()).get(key, soon()), BackendError) << key;
      ended = true;
    });
    meanwhile();
    serve_until([&] { return ended.load(); });
  };
  server.set("old/set", "1");
  server.set("older", "2");
  get_ends("old/waiting", [&] {
    // The connection has been accepted and waits.
    const int before = testing::count_descriptors();
    serve_until([&] { return testing::count_descriptors() > before; });
    server.serve();
    server.drop("old/");
  });
  get_ends("old/set", [] {});
  EXPECT_EQ(server.value("older"), "2");
  EXPECT_FALSE(server.value("old/set"));
}

TEST(LocalStore, AddsFromManyThreads) {
  Serving serving;
  LocalStore store(serving.server.path());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 25; ++j) store.add("count", 2);
      });
    }
  }
  EXPECT_EQ(store.add("count", -1), 199);
  EXPECT_EQ(store.get("count", soon()), "199");
}

TEST(LocalStore, AddRefusesWhatIsNoNumber) {
  Serving serving;
  LocalStore store(serving.server.path());
  store.set("key", "1x");
  EXPECT_THAT([&] { store.add("key", 7); }, ThrowsMessage<UsageError>(HasSubstr("\"key\"")));
  EXPECT_EQ(store.get("key", soon()), "1x");
  store.set("key", "9223372036854775807");
  EXPECT_THROW(store.add("key", 1), UsageError);
  EXPECT_EQ(store.add("key", 0), 9223372036854775807);
}

TEST(LocalStore, CarriesLargeValues) {
  Serving serving;
  LocalStore store(serving.server.path());
  const std::string large(std::size_t{4} << 20, 'x');
  store.set("large", large);
  EXPECT_TRUE(store.get("large", soon()) == large);
  EXPECT_THROW(store.set("k", std::string(store_protocol::kMaxEntry, 'x')), UsageError);
}

// Whoever fills it, the server's memory stays bounded, and the store still answers.
TEST(LocalStore, RefusesValuesThatFindNoRoom) {
  LocalStoreServer::Values initial;
  for (const char* key : {"0", "1", "2", "3"}) initial[key] = std::string(kMebibyte * 63, 'x');
  Serving serving(std::move(initial));
  LocalStore store(serving.server.path(), {.context = {.rank = 1, .size = 2}});
  const std::string large(kMebibyte * 5, 'x');
  EXPECT_THAT([&] { store.set("4", large); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("rank 1 of 2: "), HasSubstr("\"4\""), HasSubstr("256 MiB"))));
  EXPECT_EQ(store.add("count", 1), 1);
  store.set("3", "small");
  store.set("4", large);
  EXPECT_EQ(store.get("3", soon()), "small");
}

// Each would be a copy of the value.
TEST(LocalStore, ClientsThatTakeNoRepliesCostNothing) {
  Serving serving({{"large", std::string(kMebibyte * 50, 'x')}});
  const std::string request = encode_request(Operation::get, "large", "");
  const std::int64_t before = memory_in_use();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_unix(serving.server.path(), soon()));
    send_all(silent.back().get(), std::as_bytes(std::span(request)), soon());
    std::byte first{};
    receive_all(silent.back().get(), std::span(&first, 1), soon());
  }
  EXPECT_LT(memory_in_use() - before, 50 * static_cast<std::int64_t>(kMebibyte));
}

TEST(LocalStore, OwnerSetsAndReadsValues) {
  Serving serving(LocalStoreServer::Values{{"from owner", "1"}});
  LocalStore store(serving.server.path());
  EXPECT_EQ(store.get("from owner", soon()), "1");
  store.set("from rank", "2");
  EXPECT_EQ(serving.stop().values().find("from rank")->second, "2");
}

TEST(LocalStore, OwnerTakesValuesThatBeginAlike) {
  LocalStoreServer server;
  for (const char* const key : {"a", "ask/1", "ask/2", "b"})
    server.set(key, "of " + std::string(key));
  EXPECT_THAT(server.take("ask/"), ::testing::ElementsAre(::testing::Pair("ask/1", "of ask/1"),
                                                          ::testing::Pair("ask/2", "of ask/2")));
  EXPECT_EQ(server.values().size(), 2u);
  server.set("ask/1", "again");
  EXPECT_EQ(server.value("ask/1"), "again");
}

TEST(LocalStore, SaysThatTheServerIsGone) {
  std::string path;
  {
    LocalStoreServer server;
    path = server.path();
    struct stat status {};
    ASSERT_EQ(::stat(server.folder().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path()));
  EXPECT_THAT([&] { LocalStore(path).set("key", "value"); },
              ThrowsMessage<BackendError>(HasSubstr(path)));
}

TEST(LocalStore, AServerThatDoesNotAnswerIsNamedWithTheRankThatAsked) {
  const LocalStoreServer neighbour;
  const std::string path = neighbour.folder() + "/mute";
  const UniqueFd mute = listen_unix(path);
  LocalStore store(path, {.context = {.rank = 1, .size = 2}, .patience = 100ms});
  EXPECT_THAT([&] { store.set("key", "value"); },
              ThrowsMessage<TimeoutError>(AllOf(StartsWith("rank 1 of 2: store " + path),
                                                HasSubstr("not answered for 100 ms"),
                                                HasSubstr("is the launcher"))));
  std::filesystem::remove(path);
}

TEST(LocalStore, GetSaysThatTheLauncherEnded) {
  auto serving = std::make_unique<Serving>();
  LocalStore store(serving->server.path());
  std::jthread end([&] {
    store.set("ready", "");
    serving->stop();
    serving.reset();
  });
  EXPECT_THROW(store.get("never", soon()), BackendError);
}

TEST(LocalStoreServer, FolderIsInTmpdirUnlessItsNameIsTooLong) {
  const std::string parent = ::testing::TempDir();
  ::setenv("TMPDIR", parent.c_str(), 1);
  EXPECT_THAT(LocalStoreServer().path(), ::testing::StartsWith(parent));
  ::setenv("TMPDIR", ("/" + std::string(200, 'x')).c_str(), 1);
  EXPECT_THAT(LocalStoreServer().path(), ::testing::StartsWith("/tmp/"));
  ::setenv("TMPDIR", "/nowhere", 1);
  EXPECT_THAT([] { LocalStoreServer server; }, ThrowsMessage<BackendError>(HasSubstr("/nowhere")));
  ::unsetenv("TMPDIR");
}

TEST(LocalStoreServer, RemovesLeftFoldersAndNoOthers) {
  const testing::PrivateTmpdir tmpdir;
  const LocalStoreServer alive;
  const pid_t killed = ::fork();
  if (killed == 0) {
    const LocalStoreServer server;
    ::_exit(0);
  }
  ::waitpid(killed, nullptr, 0);
  // As another version or another machine names its folders.
  for (const char* name : {"lockstep-abcdef", "lockstep-0-abcdef", "mine"}) {
    std::filesystem::create_directory(tmpdir.path() / name);
  }
  EXPECT_EQ(tmpdir.entries().size(), 5u);
  { const LocalStoreServer later; }
  EXPECT_EQ(tmpdir.entries().size(), 4u);
  EXPECT_TRUE(std::filesystem::exists(alive.path()));
  for (const char* name : {"lockstep-abcdef", "lockstep-0-abcdef", "mine"}) {
    EXPECT_TRUE(std::filesystem::remove(tmpdir.path() / name));
  }
}

// Sends the bytes and waits until the server closes the connection.
void expect_closed(Serving& serving, const std::string& bytes) {
  const UniqueFd connection = connect_unix(serving.server.path(), soon());
  send_all(connection.get(), std::as_bytes(std::span(bytes)), soon());
  std::array<std::byte, 1> reply{};
  EXPECT_THROW(receive_all(connection.get(), reply, soon()), ConnectionClosed);
}

TEST(LocalStoreServer, ClosesConnectionsThatSendNoRequest) {
  Serving serving;
  LocalStore store(serving.server.path());
  store.set("key", "value");
  const std::string get = encode_request(Operation::get, "absent", "");
  expect_closed(serving, encode_length(0xffffffff));
  expect_closed(serving, encode_length(store_protocol::kMaxRequest + 1));
  expect_closed(serving, encode_length(0));
  expect_closed(serving, encode_length(4) + "sabc");
  // A key longer than the request, an unknown operation, more after a request.
  expect_closed(serving, encode_length(6) + "s" + encode_length(0xfffffff0) + "k");
  expect_closed(serving, encode_length(5) + "x" + encode_length(0));
  expect_closed(serving, get + "more");
  EXPECT_EQ(store.get("key", soon()), "value");
}

TEST(LocalStoreServer, ForgetsTruncatedRequests) {
  Serving serving;
  LocalStore store(serving.server.path());
  const std::string request = encode_request(Operation::set, "key", "value");
  for (std::size_t length = 0; length < request.size(); ++length) {
    const UniqueFd connection = connect_unix(serving.server.path(), soon());
    send_all(connection.get(), std::as_bytes(std::span(request)).first(length), soon());
  }
  EXPECT_THROW(store.get("key", Deadline::after(50ms)), TimeoutError);
  store.set("key", "whole");
  EXPECT_EQ(store.get("key", soon()), "whole");
}

TEST(LocalStoreServer, TakesARequestByteByByte) {
  Serving serving;
  const UniqueFd connection = connect_unix(serving.server.path(), soon());
  for (const char byte : encode_request(Operation::set, "slow", "value")) {
    send_all(connection.get(), std::as_bytes(std::span(&byte, 1)), soon());
  }
  EXPECT_EQ(LocalStore(serving.server.path()).get("slow", soon()), "value");
}

TEST(LocalStoreServer, OutlivesRandomBytes) {
  Serving serving;
  LocalStore store(serving.server.path());
  store.set("key", "value");
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Half of them look like a request at first, so that its inside is tried too.
    if (round % 2 == 0) bytes = encode_length(bytes.size()) + (round % 4 == 0 ? "s" : "g") + bytes;
    const UniqueFd connection = connect_unix(serving.server.path(), soon());
    send_all(connection.get(), std::as_bytes(std::span(bytes)), soon());
  }
  EXPECT_EQ(store.get("key", soon()), "value");
}

}  // namespace
}  // namespace lockstep
