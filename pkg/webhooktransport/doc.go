// Package webhooktransport carries the calls that servers make to URLs which
// others chose. Whose choice it was decides what the call may do.
//
//	                    of tenants (Tenants)                    of the operator (Operator)
//	which               admission and conversion webhooks       token, authorization and audit webhooks
//	answers             at most AnswerBytes, after decompression, and 64 KiB of headers; redirects are errors
//	credentials         none                                    those of the kubeconfig
//	addresses           public ones, and --webhook-allowed-cidrs  any
//	proxies             none                                    those of the environment
//	failed answers      their status, nothing of what they say  as they are
//	Retry-After         nothing is called again                 client-go waits, and calls again
//	errors              no addresses, no resolvers              as they are
//
// An address is judged when it is connected to, after the name was resolved: a
// name that means another address the next time is judged again. A proxy would
// resolve names by itself, which is why tenants' webhooks are called without one.
//
// Documents reads the keys of tenants' issuers by the rules of the first column, and nothing of
// them is ever shown.
//
// What front-proxies send to servers that tenants mount has their users' rules, and of these the
// one about addresses (NewDialer).
//
// Every later URL that a tenant may choose belongs here.
package webhooktransport
