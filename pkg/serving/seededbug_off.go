//go:build !seededbug

package serving

import "net/http"

// A build with the tag seededbug forgets the logical cluster of some requests on
// purpose, so that test/isolation can show that it would notice. Here nothing
// happens.

func seedRequest(r *http.Request) *http.Request { return r }
