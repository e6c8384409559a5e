// Package issuers knows the tokens of OIDC issuers that tenants name in
// WorkspaceAuthenticationConfigurations. Tenants name as many as they like, which may be dead,
// slow or hostile: nothing of that delays the tokens of others.
//
//	token ─► its iss, read but not believed ─► the entries with that issuer, and no others
//	           entry (digest of all of it) ─► provider: compiled rules    ┐ made at first use,
//	           its issuer, CA (digest)     ─► keys: fetched, and renewed  ┘ ended after a rest
//
// Each logical cluster that has configurations has bounds of its own: how many requests wait for
// its issuers, how many of these are asked at a time, and one token at a time is verified, since
// its rules may be long and the keys large.
package issuers
