package frontproxy

import (
	"net/http"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/request"
)

// serveAdmin forwards a request for what is of the whole installation, which each shard
// knows, to one that answers. Shards tell administrators only.
func (rt *router) serveAdmin(w http.ResponseWriter, r *http.Request) {
	c, ok := newCall(w, r, rt.devTokens)
	if !ok {
		return
	}
	c.rest = strings.TrimPrefix(r.URL.EscapedPath(), request.AdminPath)
	if !rt.administers(r.Context(), c.user) {
		writeStatus(w, forbidden(r, unescapedRest(c.rest)))
		return
	}
	shard := rt.shards.any()
	if shard == nil {
		writeStatus(w, unavailable("the shards are not known yet"))
		return
	}
	rt.send(w, r, c, "", &adminTarget{backend: shard, call: c, groups: rt.groups})
}

// any returns the way to a shard, or nil if none is known: root, or while that does not answer,
// the first by name that does. Clients go on from versions of one shard at the same one only, so
// it is the same one as long as it can be.
func (s *shards) any() *backend {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var first way
	for _, to := range s.ways {
		if first.backend == nil || to.before(first) {
			first = to
		}
	}
	return first.backend
}

// before reports whether a shard is to be asked rather than another one.
func (to way) before(other way) bool {
	if answers := to.answers(); answers != other.answers() {
		return answers
	}
	if root := to.Name == corev1alpha1.RootShard; root || other.Name == corev1alpha1.RootShard {
		return root
	}
	return to.Name < other.Name
}

// answers reports whether the shard has answered whenever it was asked lately.
func (to way) answers() bool { return !to.Silent() && to.follower.failure() == nil }
