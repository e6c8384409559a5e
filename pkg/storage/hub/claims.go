package hub

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// claimLocked has the hub follow the claim set of a watcher. The hub has seen the version
// of the set's latest change.
func (h *Hub) claimLocked(w *Watcher) error {
	in := w.request.Claims
	c := h.claimed.of[in.Set]
	if c == nil {
		c = &claimants{Claims: in, scopes: scopes{}, watchers: map[*Watcher]struct{}{}}
		if !in.Set.Follow(func() { h.claimsChanged(c) }) {
			return apierrors.NewInternalError(fmt.Errorf("a claim set of %s is in use by another storage", in.Set.Resource()))
		}
		h.claimed.of[in.Set] = c
		for _, m := range in.Set.Latest().Members {
			h.selectClaimLocked(c, m.Cluster, m.Selection)
		}
	}
	c.watchers[w] = struct{}{}
	w.claims = c
	return nil
}

func (h *Hub) unclaimAllLocked() {
	for _, c := range h.claimed.of {
		c.Set.Unfollow()
	}
	clear(h.claimed.of)
	clear(h.claimed.in)
}

// restartClaimsLocked is for an etcd that was restored from a backup.
func (h *Hub) restartClaimsLocked(version uint64) {
	for set := range h.claimed.of {
		set.Restart(version)
	}
}

// selectClaimLocked notes what a claim set holds of a logical cluster.
func (h *Hub) selectClaimLocked(c *claimants, cluster logicalcluster.Name, selection claims.Selection) {
	key := c.prefix(cluster)
	in := h.claimed.in[key]
	for i := range in {
		if in[i].claimants != c {
			continue
		}
		if selection.Held() {
			in[i].selection = selection
			return
		}
		last := len(in) - 1
		in[i], in[last] = in[last], claimant{}
		if h.claimed.in[key] = in[:last]; last == 0 {
			delete(h.claimed.in, key)
		}
		return
	}
	if selection.Held() {
		h.claimed.in[key] = append(in, claimant{c, selection})
	}
}

// claimsChanged is called by a claim set that waits to be applied.
func (h *Hub) claimsChanged(c *claimants) {
	h.mu.Lock()
	told, more := h.applyClaimsLocked(c)
	if more && !c.waiting {
		c.waiting = h.startLocked(func() { h.awaitClaims(c) })
	}
	h.mu.Unlock()
	for _, t := range told {
		t.compare()
	}
}

// awaitClaims applies changes when the hub has seen the versions that they wait for, so
// that the events of a watcher stay in order.
func (h *Hub) awaitClaims(c *claimants) {
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		h.cfg.WantProgress()
		h.mu.Lock()
		told, more := h.applyClaimsLocked(c)
		changed := h.changesLocked()
		if c.waiting = more; !more {
			h.unfollowLocked(c)
		}
		h.mu.Unlock()
		for _, t := range told {
			t.compare()
		}
		if !more {
			return
		}
		select {
		case <-changed:
		case <-again.C:
		case <-h.done:
			return
		}
	}
}

// applyClaimsLocked applies the changes of a claim set that the hub has come to, and has
// the watchers told. It returns what has to be compared for them, without the lock.
func (h *Hub) applyClaimsLocked(c *claimants) (all []*told, more bool) {
	if !h.synced || h.claimed.of[c.Set] != c {
		return nil, h.claimed.of[c.Set] == c
	}
	changes, more := c.Set.Apply(h.version)
	for _, change := range changes {
		h.selectClaimLocked(c, change.Cluster, change.After)
		if t := h.tellClaimLocked(c, change); t != nil {
			all = append(all, t)
		}
	}
	h.unfollowLocked(c)
	return all, more
}

// tellClaimLocked has the watchers of a claim set told of a change, after the events
// until now. It returns what they are told, or nil if there is nobody.
func (h *Hub) tellClaimLocked(c *claimants, change claims.Change) *told {
	key := c.prefix(change.Cluster)
	var t *told
	for w := range c.watchers {
		if !w.joined || !strings.HasPrefix(key, w.request.Key) && !strings.HasPrefix(w.request.Key, key) {
			continue
		}
		if t == nil {
			t = &told{cfg: &h.cfg, number: h.history.next, version: h.version, objects: h.objects.snapshot(), prefixes: []compared{{
				prefix: key, now: change.After, spans: []span{{selection: change.Before, to: forever}},
			}}}
		}
		w.telling = append(w.telling, t)
		switch {
		case len(w.telling) > tellingMax:
			w.tooSlow()
			w.endLocked()
		case !w.behind:
			w.fallBehindLocked(t.number)
		}
	}
	return t
}

// lockFollowing locks the hub when it has seen the latest change of a claim set.
func (h *Hub) lockFollowing(ctx context.Context, in Claims) error {
	for in.Set != nil {
		if err := in.Set.Current(); err != nil {
			return err
		}
		version := in.Set.Version()
		if err := h.WaitFresh(ctx, version); err != nil {
			return err
		}
		h.mu.Lock()
		if h.version >= in.Set.Version() {
			return nil
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	return nil
}

// waitForClaims waits until the hub has come to the latest change of a claim set: what is
// not allowed any more is not shown, however old a state the request would take.
func (h *Hub) waitForClaims(ctx context.Context, in Claims) error {
	if in.Set == nil {
		return nil
	}
	return h.WaitFresh(ctx, in.Set.Version())
}

// claimView is what a list or the initial events of a request show of a claim set.
type claimView struct {
	*claims.Snapshot
	Claims
}

// viewAt returns what a request shows at a version that the hub has seen, by all claims that were accepted
// until then. It is nil where the request is not restricted.
func (h *Hub) viewAt(ctx context.Context, in Claims, version uint64) (*claimView, error) {
	if in.Set == nil {
		return nil, nil //nolint:nilnil // no restriction is no error
	}
	if err := in.Set.CatchUp(ctx, version); err != nil {
		return nil, err
	}
	h.mu.Lock()
	c := h.claimed.of[in.Set]
	h.mu.Unlock()
	if c != nil {
		h.claimsChanged(c) // the hub may have come to what waits for it
	}
	view, err := in.Set.At(version)
	if err != nil {
		return nil, expiredClaims(err)
	}
	if err := in.Set.Current(); err != nil {
		return nil, err
	}
	return &claimView{view, in}, nil
}

// walk yields the items below a key from another on that the request may show, until
// yield returns false.
func (v *claimView) walk(objects *snapshot, key, start string, yield func(item) bool) {
	if v == nil {
		objects.from(start, func(it item) bool { return inScope(key, it.key) && yield(it) })
		return
	}
	members := v.Members
	if cluster := v.cluster(key); cluster != "" {
		members = []claims.Member{{Cluster: cluster, Selection: v.Selection(cluster)}}
	} else if cluster = v.cluster(start); cluster != "" {
		members = v.From(cluster)
	}
	for _, m := range members {
		below := v.prefix(m.Cluster)
		if strings.HasPrefix(key, below) {
			below = key
		}
		goOn := true
		objects.from(max(start, below), func(it item) bool {
			if !inScope(below, it.key) {
				return false
			}
			goOn = !m.Selection.Matches(it.obj) || yield(it)
			return goOn
		})
		if !goOn {
			return
		}
	}
}
