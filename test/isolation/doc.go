// Package isolation tries to access one logical cluster as an administrator of another one without
// rights in the first: by path, header, token, certificate, impersonation, selector, continue token,
// body and name, alone, combined and mutated, at the ports of the front-proxy, the shards and the
// cache server.
//
//	table ────┐                 ┌─ TLS ────────┐                 ┌─ no response contains a canary
//	generator ┼─► raw request ──┤              ├─► all servers ──┼─ responses do not disclose existence
//	fuzzer ───┘                 └─ in process ─┘                 ├─ nor do frames, connections and latencies
//	                                                             ├─ webhooks receive no data of other tenants
//	                                                             └─ etcd content is unchanged
//
// The objects of the victims contain canaries: random text in names, namespaces, labels, contents and
// schemas, which must not appear in a response, not even in base64 or compressed. Each request is
// repeated for an object that does not exist: status, headers, body and HTTP/2 frames must be equal.
// Response times are compared with the Mann-Whitney test; differences of more than 1 ms are findings.
//
//	go test ./test/isolation                                      # table, scenarios, 500 generated requests
//	make isolation                                                # a million generated requests, and response times
//	make isolation ISOLATION_FLAGS='-seed 7 -from 123 -inputs 1'  # repeats one request; each finding prints this line
//	go test ./test/isolation -run xxx -fuzz FuzzIsolation         # requests of Go's fuzzer
package isolation
