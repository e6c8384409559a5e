// Package serving contains everything that the Shardplane servers which store objects have in common: options of
// the secure listener, the configuration of the generic API server, and filters of their handler chains.
//
//	Chain = Arrival + scope filters + Reception + WithAccessHeader + Decision + limits and rules
//
// Each server assembles its chain from these parts; docs/chains.md lists them. Scopes moves the
// scope from the URL into the context, so that all other filters see a plain Kubernetes path. After
// authorization, it rejects requests that nothing in the scope serves.
//
// Subpackages: ledger limits concurrent requests, and the resources that logical clusters and users may use at a
// time; connections, bodies and responses account for them. responses also ends responses that clients do not read.
// fairness schedules requests between logical clusters, and watchdog handles requests that compute after their end.
// features contains the feature gates, metriclabels limits the cardinality of metrics, and inprocess connects a server
// to itself without a network connection. chaintest compares chains with their documentation.
package serving
