package frontproxy

import (
	"net/http"
	"net/http/httputil"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
)

// shardTarget is a logical cluster on its shard.
type shardTarget struct {
	*backend
	visit *visit
}

func (t *shardTarget) way() *backend { return t.backend }

// path names the logical cluster, so that the shard has nothing to resolve; the rest of the
// path stays as the client wrote it.
func (t *shardTarget) path(string) string {
	return t.visit.view + request.ClusterPath(t.visit.cluster) + t.visit.rest
}

func (t *shardTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.visit.identify(p.Out.Header)
}

func (t *shardTarget) accept(r *http.Request, res *http.Response) *apierrors.StatusError {
	if t.visit.conceals(r.Context(), res) {
		return t.visit.revoked(r)
	}
	return nil
}

func (t *shardTarget) lost(r *http.Request, err error) *apierrors.StatusError {
	return t.visit.lost(r, err)
}

func (t *shardTarget) String() string { return "the workspace's shard" }

// adminTarget is a shard, for what each knows of the whole installation.
type adminTarget struct {
	*backend
	call   *call
	groups authn.GroupFilter
}

func (t *adminTarget) way() *backend              { return t.backend }
func (t *adminTarget) path(escaped string) string { return escaped }

func (t *adminTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.call.identify(p.Out.Header, t.groups)
}

func (t *adminTarget) accept(_ *http.Request, res *http.Response) *apierrors.StatusError {
	takeMark(res.Header)
	return nil
}

func (t *adminTarget) lost(*http.Request, error) *apierrors.StatusError { return nil }
func (t *adminTarget) String() string                                   { return "the shard" }
