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

// claimLocked makes the hub, which must have seen the latest change, follow the claim set of a watcher.
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

// selectClaimLocked stores the selection of a claim set for a logical cluster.
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

// claimsChanged is called by a claim set with pending changes.
func (h *Hub) claimsChanged(c *claimants) {
	h.mu.Lock()
	updates, more := h.applyClaimsLocked(c)
	if more && !c.waiting {
		c.waiting = h.startLocked(func() { h.awaitClaims(c) })
	}
	h.mu.Unlock()
	for _, t := range updates {
		t.compare()
	}
}

// awaitClaims applies pending changes when the hub has seen their versions, so that events remain in order.
func (h *Hub) awaitClaims(c *claimants) {
	again := time.NewTicker(progressInterval)
	defer again.Stop()
	for {
		h.cfg.WantProgress()
		h.mu.Lock()
		updates, more := h.applyClaimsLocked(c)
		changed := h.changesLocked()
		if c.waiting = more; !more {
			h.unfollowLocked(c)
		}
		h.mu.Unlock()
		for _, t := range updates {
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

// applyClaimsLocked applies the changes of a claim set up to the hub's version, and queues updates for
// its watchers. It returns the updates, which must be compared without the lock.
func (h *Hub) applyClaimsLocked(c *claimants) (all []*claimUpdate, more bool) {
	if !h.synced || h.claimed.of[c.Set] != c {
		return nil, h.claimed.of[c.Set] == c
	}
	changes, more := c.Set.Apply(h.version)
	for _, change := range changes {
		h.selectClaimLocked(c, change.Cluster, change.After)
		if t := h.queueClaimUpdateLocked(c, change); t != nil {
			all = append(all, t)
		}
	}
	h.unfollowLocked(c)
	return all, more
}

// queueClaimUpdateLocked queues an update for the watchers of a claim set, if there are any.
func (h *Hub) queueClaimUpdateLocked(c *claimants, change claims.Change) *claimUpdate {
	key := c.prefix(change.Cluster)
	var t *claimUpdate
	for w := range c.watchers {
		if !w.joined || !strings.HasPrefix(key, w.request.Key) && !strings.HasPrefix(w.request.Key, key) {
			continue
		}
		if t == nil {
			t = &claimUpdate{cfg: &h.cfg, number: h.history.next, version: h.version, objects: h.objects.snapshot(), prefixes: []compared{{
				prefix: key, now: change.After, spans: []span{{selection: change.Before, to: forever}},
			}}}
		}
		w.pendingUpdates = append(w.pendingUpdates, t)
		switch {
		case len(w.pendingUpdates) > maxPendingUpdates:
			w.tooSlow()
			w.endLocked()
		case !w.behind:
			w.fallBehindLocked(t.number)
		}
	}
	return t
}

// lockFollowing locks the hub as soon as it has seen the latest change of a claim set.
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

// waitForClaims waits until the hub has seen the latest change of a claim set, even if the request accepts an old state.
func (h *Hub) waitForClaims(ctx context.Context, in Claims) error {
	if in.Set == nil {
		return nil
	}
	return h.WaitFresh(ctx, in.Set.Version())
}

// claimRestriction restricts a list or the initial events to a claim set at one version.
type claimRestriction struct {
	*claims.Snapshot
	Claims
}

// restrictionAt returns the restriction of a request, or nil, at a version that the hub has seen.
func (h *Hub) restrictionAt(ctx context.Context, in Claims, version uint64) (*claimRestriction, error) {
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
		h.claimsChanged(c) // the hub may have reached the version of pending changes
	}
	restriction, err := in.Set.At(version)
	if err != nil {
		return nil, expiredClaims(err)
	}
	if err := in.Set.Current(); err != nil {
		return nil, err
	}
	return &claimRestriction{restriction, in}, nil
}

// walk yields the items below a key, beginning at start, that the request may read, until yield returns false.
func (v *claimRestriction) walk(objects *snapshot, key, start string, yield func(item) bool) {
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
		proceed := true
		objects.from(max(start, below), func(it item) bool {
			if !inScope(below, it.key) {
				return false
			}
			proceed = !m.Selection.Matches(it.obj) || yield(it)
			return proceed
		})
		if !proceed {
			return
		}
	}
}
