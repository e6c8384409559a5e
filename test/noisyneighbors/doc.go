// Package noisyneighbors contains the noisy-neighbor tests: they assert how much one tenant can cost the
// others. A shard has a quiet tenant with objects and watches, and an attacker that is administrator of
// another workspace and uses each API in the most expensive way. The assertions count events that do not
// depend on the machine: series and bytes of metrics, bytes of the heap after a garbage collection, and
// events that the quiet tenant receives.
//
//	row          the attacker                                        must not cost the others
//	load         reads, writes and deletes continuously              failed requests
//	metrics      creates and deletes groups, webhooks and policies,  series, or bytes of /metrics
//	             and requests missing resources
//	columns      prints a large field in thousands of columns        allocated bytes, as in the following rows
//	patterns     uses regular expressions with large programs in
//	             definitions, policies and authentication
//	defaults     adds defaults to each of many items
//	alternatives validates many items with many alternatives
//	invalid      sends objects with 90,000 errors, or large ones
//	keyed        sends lists and maps with very many keys
//	patches      inserts into and merges long lists, repeats a string, and
//	             computes patches that repeat an object in policies
//	documents    requests the OpenAPI documents of many definitions  bytes of the heap
//	conversion   has a conversion webhook that does not respond      seats, or many concurrent calls
//	watches      opens the maximum number of watches, also with      ended or rejected watches, or
//	             large selectors, and writes                         events of others
//	events       sends large events to all its watches               bytes of the heap
//	storage      stores as much as possible                          capacity of etcd, or rejected writes
//	rules        binds one user thousands of times to large roles,   bytes of responses, or delayed bindings
//	             sends access reviews, and changes the roles
//	policies     has policies with the maximum cost that deny        delayed service accounts, quotas and
//	             everything                                          workspaces, also in its own workspace
//	types        has large workspace types, and long chains          bytes of the heap
//	replicas     creates objects that are replicated to the cache    capacity of the cache server, or delayed
//	             server: exports, roles                              replicas
//	cached       replicates more objects than allowed                the same
//	webhooks     has admission and conversion webhooks that          bytes read or allocated, calls of servers
//	             return unlimited data, redirect, fail or are        that the attacker cannot call itself,
//	             servers of others                                   or credentials
//	providers    exports an API with webhooks that do not respond    slots for calls of other webhooks, or other
//	             and rules with excessive cost                       rejected objects
//	exports      offers schemas of the maximum size, claims          objects without an accepted claim, bytes of
//	             everything, changes an export continuously          documents, copies of schemas, ended watches
//	consumers    binds and unbinds, accepts and rejects claims       writes of objects, ended watches of the
//	             on many objects, has many pending bindings          provider, copies of schemas
//	hanging      sends writes, as one user and as several, that      seats for executing requests, or responses
//	             hang in webhooks of six workspaces                  with 429 or 5xx
//	paths        requests random paths from every server             series of metrics
//	connections  opens connections, anonymous ones and as one user   connections of others
//	floods       resets streams immediately, sends unlimited         memory, goroutines
//	             headers, pings and settings to every server
//	readers      does not read its responses                         seats, even of its own logical cluster
//	bodies       sends writes with incomplete bodies                 seats, even of its own logical cluster
//	homes        fills its home workspace, and workspaces below      capacity of etcd
//	tokens       has an issuer with tokens that are slow to map to   authentication
//	             users, and sends many of them
//	overdue      disconnects from writes that compute for seconds    seats, or responses with 429
//
// Rows delete their objects, so that they can run in any order and repeatedly.
//
// Latencies are reported, but not asserted: `make noisy-neighbors` prints the latencies of the quiet tenant
// before and during each row.
package noisyneighbors
