// Package authn decides who a request is from. Shards, the front-proxy and the
// cache server share it, so that all decide alike: client certificates, the
// request headers of a trusted front-proxy, and the tokens of the development
// cluster. Anonymous requests reach the health probes and nothing else.
package authn
