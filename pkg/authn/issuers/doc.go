// Package issuers authenticates tokens of OIDC issuers that tenants configure in
// WorkspaceAuthenticationConfigurations. The number of issuers is not limited, and they may be unreachable,
// slow or malicious, but must not delay the tokens of others.
//
//	token ─► its iss, not verified yet ─► the entries with that issuer, and no others
//	           entry (digest of all of it) ─► provider: compiled rules   ┐ created on first use,
//	           its issuer, CA (digest)     ─► keys: fetched and renewed  ┘ dropped when unused
//
// Each logical cluster with configurations has its own limits: the number of requests that wait for its
// issuers, and the number of concurrent fetches. Only one of its tokens is verified at a time, because rules
// may be long and keys large.
package issuers
