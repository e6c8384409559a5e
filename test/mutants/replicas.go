package mutants

// replicas are mutants of controllers and the cache server.
var replicas = []Mutant{
	{
		Name: "stampede", Rule: "only one request at a time checks whether a shard is available again",
		Edits: []Edit{{
			File:   "pkg/peers/peer.go",
			Before: `(b.probing || time.Now().Before(b.until))`,
			After:  `time.Now().Before(b.until)`,
		}},
		CaughtBy: "./pkg/peers", Test: "TestUnreachableShardReceivesOnlyProbes",
	},
	{
		Name: "kept-connections", Rule: "connections and data of a deleted shard are removed",
		Edits: []Edit{{
			File: "pkg/peers/book.go",
			Before: `	e.removed.Store(true)
	Close(e.Clients.CloseIdleConnections)`,
			After: `	e.removed.Store(true)`,
		}},
		CaughtBy: "./pkg/peers", Test: "TestBookFollowsTheShards",
	},
	{
		Name: "early-negation", Rule: "a service account must only be reported as absent if all shards have responded",
		Edits: []Edit{{
			File:   "pkg/authn/serviceaccount/authenticator.go",
			Before: `	if !all {`,
			After:  `	if !all && len(shards) > 1 {`,
		}},
		CaughtBy: "./pkg/authn/serviceaccount", Test: "TestRemote",
	},
	{
		Name: "empty-relay", Rule: "if a cache server has lost its data, relays must not delete their replicas",
		Edits: []Edit{{
			File:   "pkg/replication/push/session.go",
			Before: `func (s *session) unconfirmed() bool { return s.source != nil && s.lost.Load() != s.found.Load() }`,
			After:  `func (s *session) unconfirmed() bool { return false }`,
		}, {
			File:   "pkg/replication/push/push.go",
			Before: `		return nil, s.confirmDeleted(ctx)`,
			After:  `		return nil, nil`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestRemovedOnRelaySource",
	},
	{
		Name: "replica-kept", Rule: "if an object is deleted, its replica is deleted",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `	wanted := local != nil && resource.Selects(local)`,
			After:  `	wanted := local != nil`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDecide",
	},
	{
		Name: "replica-stale", Rule: "the whole content of replicas is compared",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `	metadata["annotations"] = annotations`,
			After:  `	metadata["annotations"] = len(annotations)`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDecide",
	},
	{
		Name: "early-checkpoint", Rule: "a checkpoint covers acknowledged replicas, and no pending ones",
		Edits: []Edit{{
			File:   "pkg/replication/push/ledger.go",
			Before: `	if o.next == 0 {`,
			After:  `	if o.next == 0 || o.next > o.first {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestLedgerModel",
	},
	{
		Name: "replica-alive", Rule: "a replica contains the deletion timestamp of its object",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `"deletionTimestamp"); since != "" {`,
			After:  `"deletionTimestamp"); since == "never" {`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDesiredOfDeletedObject",
	},
	{
		Name: "early-digest", Rule: "digests are only compared if the data does not change meanwhile",
		Edits: []Edit{{
			File:   "pkg/replication/push/ledger.go",
			Before: ` && m.turns[bucket] == later.turns[bucket]`,
			After:  ``,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestChangedBucketsAreNotCompared",
	},
	{
		Name: "replica-wins", Rule: "the shard's own objects have precedence over replicas",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `	if !found && !d.options.Owns(cluster) {`,
			After:  `	if !d.options.Owns(cluster) {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualModel",
	},
	{
		Name: "stale-counts", Rule: "replicas of a shard that does not exist are ignored",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `		if c.state == Removed {`,
			After:  `		if c.state > Active {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualModel",
	},
	{
		Name: "unknown-is-missing", Rule: "an object must only be reported as missing if everything has been read once",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `	if err == nil || (d.options.Owns(cluster) && d.own.HasSynced()) {`,
			After:  `	if err == nil || d.own.HasSynced() {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualWithoutOthers",
	},
	{
		Name: "hidden-copy-event", Rule: "handlers only observe the preferred copy",
		Edits: []Edit{{
			File: "pkg/replicas/dual.go",
			Before: `	if _, hidden := d.own.Lister().Lookup(c.Key); hidden {
		return
	}`,
			After: ``,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualEvents",
	},
	{
		Name: "replica-deleted-blindly", Rule: "a replica is deleted only if it is the compared one",
		Edits: []Edit{{
			File: "pkg/replication/push/replicas.go",
			Before: `		version := obj.GetResourceVersion()
		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})`,
			After: `		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{})`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestReplicaIsDeletedAsCompared",
	},
	{
		Name: "replica-of-short-lived", Rule: "if an object is deleted while its replica is written, the replica is deleted",
		Edits: []Edit{{
			File:   "pkg/replication/push/session.go",
			Before: `	case has || l.ledger.has(key):`,
			After:  `	case has:`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestEngineModel",
	},
	{
		Name: "replica-missed-deletion", Rule: "if a deletion was not observed, the replica is deleted",
		Edits: []Edit{{
			File:   "pkg/replication/push/session.go",
			Before: `		if _, observed := l.seen[key]; !observed {`,
			After:  `		if _, observed := l.seen[key]; !observed && !l.comparing {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestEngineModel",
	},
	{
		Name: "replica-unverified", Rule: "if a replica was changed without an event, it is repaired",
		Edits: []Edit{{
			File:   "pkg/replication/push/verifier.go",
			Before: `&& expected.root != rootOf(response, resource) {`,
			After:  `&& expected.root == rootOf(response, resource) {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestDigestsDetectLostEvents",
	},
	{
		Name: "replica-other-data", Rule: "if data has another ID, it is compared again",
		Edits: []Edit{{
			File:   "pkg/replication/push/verifier.go",
			Before: `if v.dataID != "" && v.dataID != response.DataID {`,
			After:  `if v.dataID != "" && v.dataID > response.DataID {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestOtherDataID",
	},
	{
		Name: "checkpoint-lost", Rule: "if a checkpoint is lost, everything is compared again",
		Edits: []Edit{{
			File:   "pkg/replication/push/checkpoints.go",
			Before: `	if before == nil || m.known != nil && m.known.Number`,
			After:  `	if before == nil || m.known == nil || m.known.Number`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestCheckpoints",
	},
	{
		Name: "checkpoint-epoch", Rule: "if a shard is restored from an older backup, checkpoints have another epoch",
		Edits: []Edit{{
			File:   "pkg/replication/push/checkpoints.go",
			Before: `		latest = newEpochAfter(found)`,
			After:  `		latest = found`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestCheckpoints",
	},
	{
		Name: "replicas-of-removed", Rule: "if a resource is removed from the table, its replicas are deleted",
		Edits: []Edit{{
			File:   "pkg/replication/push/controller.go",
			Before: `		return remaining == 0 && err == nil, nil`,
			After:  `		return remaining == 0 || err != nil, nil`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestResourcesAreAddedAndRemoved",
	},
	{
		Name: "relay-loop", Rule: "a cache server must not relay its own objects",
		Edits: []Edit{{
			File:   "pkg/cacheserver/relay/relays.go",
			Before: ` || slices.Contains(via, r.self.Name)`,
			After:  ``,
		}},
		CaughtBy: "./pkg/cacheserver/relay", Test: "TestRoutes",
	},
	{
		Name: "last-writer", Rule: "an object is visible while any shard has a replica of it",
		Edits: []Edit{{
			File: "pkg/virtual/replication/follower.go",
			Before: `	others := f.copiesOfOthers(last)
	switch {
	case len(others) == 0:`,
			After: `	others := f.copiesOfOthers(last)
	switch {
	case len(others) == 0 || before[len(before)-1].GetAnnotations()[request.ShardAnnotation] == last.GetAnnotations()[request.ShardAnnotation]:`,
		}},
		CaughtBy: "./pkg/virtual/replication", Test: "TestReplicasOfSeveralShards",
	},
}
