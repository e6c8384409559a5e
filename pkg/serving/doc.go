// Package serving holds what all Shardplane servers that store objects share:
// the options of the secure listener, the construction of the generic API
// server's configuration, and the filters that tell logical clusters apart.
//
//	TLS ─► WithClusterURL ─► upstream's chain (panic, audit, authn, authz, …) ─► WithClusterRules ─► API
//
// The outer filter takes the logical cluster off the URL, so that everything
// between sees a plain Kubernetes path; the inner one answers, after
// authorization, what no logical cluster may be asked.
package serving
