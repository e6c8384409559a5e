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
// schemas. docs/development/authorization.md describes long runs.
package isolation
