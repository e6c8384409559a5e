package ledger

import (
	"context"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Refuse answers a request with 429 and Retry-After, saying why.
type Refuse func(w http.ResponseWriter, r *http.Request, why string)

// Count returns how much a request takes, 0 for requests that are not limited.
type Count func(r *http.Request, info *apirequest.RequestInfo) int64

// headerBytes is the length of headers up to which a request counts as one.
const headerBytes = 16 << 10

// OfHeaders returns how much more a request counts for its headers and its query, which are in
// memory for as long as it lasts, up to a megabyte: one for each headerBytes.
func OfHeaders(r *http.Request) int64 {
	bytes := len(r.URL.RawQuery)
	for name, values := range r.Header {
		for _, value := range values {
			bytes += len(name) + len(value)
		}
	}
	return int64(bytes / headerBytes)
}

// TakeFor counts n for the request of ctx until give is called.
func (l *Ledger) TakeFor(ctx context.Context, n int64) (give func(), err error) {
	h := HolderOf(ctx)
	if err := l.Take(h, n); err != nil {
		return nil, err
	}
	return func() { l.Give(h, n) }, nil
}

// Wrap returns next behind the limits. Requests of the installation's own components are neither
// counted nor refused: what they write for one tenant takes nothing from another.
func (l *Ledger) Wrap(next http.Handler, count Count, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		if n := count(r, info); n > 0 {
			give, err := l.TakeFor(r.Context(), n)
			if err != nil {
				refuse(w, r, err.Error())
				return
			}
			defer give()
		}
		next.ServeHTTP(w, r)
	})
}
