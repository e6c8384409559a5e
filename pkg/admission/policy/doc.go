// Package policy applies the ValidatingAdmissionPolicies and
// MutatingAdmissionPolicies of the logical cluster that a write is for, and of
// no other.
//
//	policies, bindings ─► set of a logical cluster, made when it is needed
//	                        ├─ evaluators, shared by logical clusters with equal policies
//	                        ├─ parameters, watched only where a policy has some, and read where it is
//	                        │  another shard's, or where they are too large to be kept (remoteparams)
//	                        └─ upstream's dispatcher, which does all the rest
package policy
