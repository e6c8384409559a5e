// Package isolation tries to cross from one logical cluster to another, as a
// tenant who is administrator of the one and has no rights in the other: by
// path, header, token, certificate, impersonation, selector, continue token,
// body and name, alone, combined and mutated, at the ports of the front-proxy,
// the shards and the cache server.
//
//	table ────┐                 ┌─ real TLS ───┐                 ┌─ no answer holds a canary
//	generator ┼─► raw request ──┤              ├─► all servers ──┼─ nobody tells existing from missing
//	fuzzer ───┘                 └─ in process ─┘                 ├─ nor do frames, connections and times
//	                                                             ├─ no webhook hears of another tenant
//	                                                             └─ etcd holds what it held before
//
// The victims' objects are full of canaries: texts that no attacker knows, in
// names, namespaces, labels, contents and schemas. docs/development/authorization.md
// describes how to run it for long.
package isolation
