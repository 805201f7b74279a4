// SPDX-License-Identifier: BSD-3-Clause
// Both ends of rank 0's store: the server and its thread, and the client of all ranks.
#include "lockstep/rendezvous/tcp_store.h"

#include <array>

#include <fmt/format.h>
#include <poll.h>

#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/rendezvous/store_server.h"

namespace lockstep {
namespace {

std::string describe(const std::string& host, std::uint16_t port) {
  return "tcp://" + in_words(Endpoint{host, port});
}

ErrorContext context_of(const TcpStoreOptions& options) {
  return {.rank = options.rank, .size = options.world_size};
}

// Throws an error of this type.
template <class SomeError>
[[noreturn]] void throw_not_served(const TcpStoreOptions& options, const SomeError& error) {
  ErrorDetails details = within(context_of(options), error);
  details.cause = fmt::format("the store at {} cannot be served: {}",
                              describe(options.host, options.port), details.cause);
  details.remedy = "choose another host or port";
  throw SomeError(std::move(details));
}

Key store_key(const TcpStoreOptions& options) {
  return make_key("store", options.secret);
}

// No event signals that a silent pending peer has run out of time, or that descriptors are free
// again for connections in the kernel's queue.
constexpr int kPollMilliseconds = 200;
// How long an ending server waits for clients to take the replies that they asked for.
constexpr std::chrono::milliseconds kLinger(300);
// Each request has its own connection, and several threads of one client may make one at once.
// Without a secret, foreign connections must not take all descriptors of rank 0.
constexpr std::size_t kPlacesOfAClient = 4;
constexpr std::size_t kFurtherPlaces = 256;

// Serves a store from its own thread.
class TcpStoreServer {
 public:
  // Serves until it is destroyed. Has room for `clients` clients at once, and answers only those
  // that know the key.
  TcpStoreServer(UniqueFd listener, const Key& key, int clients);

  // See AuthenticatingAcceptor::refused().
  std::string refused() const { return acceptor_.refused(); }

 private:
  void run(int stop);

  AuthenticatingAcceptor acceptor_;
  StoreServer answers_;
  ServiceThread thread_;
};

TcpStoreServer::TcpStoreServer(UniqueFd listener, const Key& key, int clients)
    : acceptor_(std::move(listener), key, clients),
      answers_(acceptor_.descriptor(),
               kFurtherPlaces + kPlacesOfAClient * static_cast<std::size_t>(clients)),
      thread_([this](int stop) { run(stop); }) {}

void TcpStoreServer::run(int stop) {
  std::array<pollfd, 2> entries{{{stop, POLLIN, 0}, {answers_.descriptor(), POLLIN, 0}}};
  while (entries[0].revents == 0) {
    ::poll(entries.data(), entries.size(), kPollMilliseconds);
    for (auto& socket : acceptor_.serve()) answers_.admit(std::move(socket));
    answers_.serve();
  }
  for (const Deadline end = Deadline::after(kLinger); answers_.replying() && !end.passed();) {
    ::poll(&entries[1], 1, static_cast<int>(end.remaining().count()));
    answers_.serve();
  }
}

class TcpStore final : public StoreClient {
 public:
  TcpStore(const TcpStoreOptions& options, std::uint16_t port)
      : StoreClient(describe(options.host, port), Server::rank_0,
                    {.context = context_of(options), .patience = options.timeout}),
        host_(options.host),
        port_(port),
        key_(store_key(options)) {}

  void serve(UniqueFd listener, int clients) {
    server_ = std::make_unique<TcpStoreServer>(std::move(listener), key_, clients);
  }
  std::string refused() const override { return server_ ? server_->refused() : ""; }

 private:
  UniqueFd connect(const Deadline& deadline) const override {
    return enter_at_once(host_, port_, key_, deadline);
  }

  std::string host_;
  std::uint16_t port_;
  Key key_;
  std::unique_ptr<TcpStoreServer> server_;
};

}  // namespace

ServedStore serve_tcp_store(UniqueFd listener, const TcpStoreOptions& options) {
  const std::uint16_t port = local_address(listener.get()).port;
  auto store = std::make_shared<TcpStore>(options, port);
  store->serve(std::move(listener), options.world_size);
  return {std::move(store), port};
}

ServedStore serve_tcp_store(const TcpStoreOptions& options) {
  try {
    return serve_tcp_store(listen_tcp(options.host, options.port), options);
  } catch (const AddressInUse& error) {
    throw_not_served(options, error);
  } catch (const BackendError& error) {
    throw_not_served(options, error);
  }
}

std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options) {
  const std::string address = describe(options.host, options.port);
  try {
    enter(options.host, options.port, store_key(options), Deadline::after(options.timeout));
  } catch (const TimeoutError&) {
    throw TimeoutError(context_of(options),
                       fmt::format("the store at {} did not answer within {:.1f} s", address,
                                   options.timeout.count() / 1000.0),
                       "is rank 0, which serves it, running there?");
  } catch (const BackendError& error) {
    ErrorDetails details = within(context_of(options), error);
    details.cause = fmt::format("the store at {} cannot be reached: {}", address, details.cause);
    throw BackendError(std::move(details));
  }
  return make_tcp_store_client(options);
}

std::shared_ptr<Store> make_tcp_store_client(const TcpStoreOptions& options) {
  return std::make_shared<TcpStore>(options, options.port);
}

}  // namespace lockstep
