// Package webhooktransport provides the transports for calls to URLs that are configured by others. The permissions
// depend on the configuring party.
//
//	                    of tenants (Tenants)                    of administrators (Operator)
//	which               admission and conversion webhooks       token, authorization and audit webhooks
//	responses           at most MaxResponseBytes, after decompression, and 64 KiB of headers; redirects are errors
//	credentials         none                                    those of the kubeconfig
//	addresses           public ones, and --webhook-allowed-cidrs  any
//	proxies             none                                    those of the environment
//	failed responses    the status, without the content         unchanged
//	Retry-After         no retries                              client-go waits, and retries
//	errors              no addresses, no resolvers              unchanged
//
// An address is checked when a connection is made, after the name was resolved, so that every result of DNS is
// checked. Tenants' webhooks are called without proxies, because a proxy would resolve names by itself.
//
// Documents reads the keys of tenants' issuers by the rules of the first column, and their content is never shown.
// Front-proxies use NewDialer for mounted servers, which applies the rule about addresses only.
//
// All other URLs that tenants can configure must be called by this package.
package webhooktransport
