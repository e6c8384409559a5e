// Package rbac authorizes by the roles and bindings of each logical cluster, and by those of the system's
// logical cluster, which apply in all.
//
//	informers of roles and bindings, wildcard
//	        │ events
//	        ▼
//	     Index ── per logical cluster: bindings by subject and namespace, roles by name
//	        ▲
//	        │ lookups, no lists
//	     Authorizer ── Authorize, RulesFor (for reviews), RulesOf and RulesIn (for escalation checks)
//	        ▲
//	        │ waits briefly for
//	     freshness ── local writes that have not arrived in the Index yet
//
// The cost of a decision depends on the bindings of the user in one logical cluster, and not on the number of
// logical clusters.
package rbac
