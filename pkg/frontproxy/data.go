package frontproxy

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// dataSeen is which data shards say that the front-proxy has seen, by what it follows. A shard that was
// set back to older data, whose revisions have got as far again, refuses by it to go on.
type dataSeen struct {
	mu  sync.Mutex
	all map[followed]string
}

// followed is a resource at the address of a shard.
type followed struct{ host, resource string }

func (d *dataSeen) get(f followed) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[f]
}

func (d *dataSeen) set(f followed, data string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[followed]string{}
	}
	d.all[f] = data
}

// wrap returns a transport that tells shards which data was seen, and remembers what they answer.
func (d *dataSeen) wrap(next http.RoundTripper) http.RoundTripper { return &dataTransport{d, next} }

type dataTransport struct {
	seen *dataSeen
	http.RoundTripper
}

// WrappedRoundTripper lets idle connections be closed.
func (t *dataTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *dataTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	f, ok := followedBy(r.URL)
	if !ok {
		return t.RoundTripper.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header[request.DataHeader] = []string{t.seen.get(f)}
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusOK {
		t.seen.set(f, answer.Header.Get(request.DataHeader))
	}
	return answer, err
}

// followedBy returns what a request follows: a resource of all logical clusters, or root's Shards.
func followedBy(u *url.URL) (followed, bool) {
	resource, _, _ := strings.Cut(path.Base(u.Path), ":")
	return followed{u.Host, resource}, strings.HasPrefix(u.Path, request.Clusters.Prefix+request.Wildcard+"/") || resource == kinds.Shards.Resource
}
