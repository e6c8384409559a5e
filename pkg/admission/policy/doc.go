// Package policy applies the ValidatingAdmissionPolicies and MutatingAdmissionPolicies of the logical cluster
// of a write.
//
//	policies, bindings ─► set of a logical cluster, built on first use
//	                        ├─ evaluators, shared by logical clusters with equal policies
//	                        ├─ parameters, watched only if a policy has them; read on demand if they
//	                        │  are on another shard or too large to be cached (remoteparams)
//	                        └─ upstream's dispatcher
package policy
