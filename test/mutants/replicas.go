package mutants

// replicas are mutants of controllers and the cache server.
var replicas = []Mutant{
	{
		Name: "stampede", Rule: "one request at a time finds out whether a shard answers again",
		Edits: []Edit{{
			File:   "pkg/peers/breaker.go",
			Before: `(b.probing || time.Now().Before(b.until))`,
			After:  `time.Now().Before(b.until)`,
		}},
		CaughtBy: "./pkg/peers", Test: "TestASilentShardIsNotAskedAllTheTime",
	},
	{
		Name: "kept-connections", Rule: "nothing is left of a shard that is gone",
		Edits: []Edit{{
			File: "pkg/peers/book.go",
			Before: `	e.removed.Store(true)
	Close(e.Clients.CloseIdleConnections)`,
			After: `	e.removed.Store(true)`,
		}},
		CaughtBy: "./pkg/peers", Test: "TestBookFollowsTheShards",
	},
	{
		Name: "hasty-negation", Rule: "that no shard has an account is known once all have said so",
		Edits: []Edit{{
			File:   "pkg/authn/serviceaccount/remote.go",
			Before: `	if !all {`,
			After:  `	if !all && len(shards) > 1 {`,
		}},
		CaughtBy: "./pkg/authn/serviceaccount", Test: "TestRemote",
	},
	{
		Name: "believed-relay", Rule: "a cache server that has lost its data takes nothing away where it is relayed from",
		Edits: []Edit{{
			File:   "pkg/replication/push/relayed.go",
			Before: `func (s *session) unsure() bool { return s.trust != nil && s.lost.Load() != s.found.Load() }`,
			After:  `func (s *session) unsure() bool { return false }`,
		}, {
			File:   "pkg/replication/push/push.go",
			Before: `		return nil, s.confirmDeleted(ctx)`,
			After:  `		return nil, nil`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestGoneWhereItIsRelayedFrom",
	},
	{
		Name: "replica-kept", Rule: "the replica of an object that is gone goes, too",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `	wanted := local != nil && resource.Selects(local)`,
			After:  `	wanted := local != nil`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDecide",
	},
	{
		Name: "replica-stale", Rule: "a replica is compared by its whole content",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `	metadata["annotations"] = annotations`,
			After:  `	metadata["annotations"] = len(annotations)`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDecide",
	},
	{
		Name: "hasty-mark", Rule: "a mark covers what is acknowledged, and nothing that is still being written",
		Edits: []Edit{{
			File:   "pkg/replication/push/ledger.go",
			Before: `	if o.next == 0 {`,
			After:  `	if o.next == 0 || o.next > o.first {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestLedgerModel",
	},
	{
		Name: "replica-alive", Rule: "a replica says that its object is being deleted",
		Edits: []Edit{{
			File:   "pkg/replication/decide.go",
			Before: `	if since := deletion(local); since != "" {`,
			After:  `	if since := deletion(local); since == "never" {`,
		}},
		CaughtBy: "./pkg/replication", Test: "TestDesiredOfDeleted",
	},
	{
		Name: "hasty-digest", Rule: "digests are compared of what nobody is changing",
		Edits: []Edit{{
			File:   "pkg/replication/push/expected.go",
			Before: ` && m.turns[bucket] == later.turns[bucket]`,
			After:  ``,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestMoments",
	},
	{
		Name: "replica-wins", Rule: "what the shard has itself wins over all replicas",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `	if !found && !d.options.Owns(cluster) {`,
			After:  `	if !d.options.Owns(cluster) {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualModel",
	},
	{
		Name: "left-over-counts", Rule: "replicas of a shard that does not exist count for nothing",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `		if c.state == Removed {`,
			After:  `		if c.state > Active {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualModel",
	},
	{
		Name: "unknown-is-missing", Rule: "nothing is said to be missing before everything was known once",
		Edits: []Edit{{
			File:   "pkg/replicas/dual.go",
			Before: `	if err == nil || (d.options.Owns(cluster) && d.own.HasSynced()) {`,
			After:  `	if err == nil || d.own.HasSynced() {`,
		}},
		CaughtBy: "./pkg/replicas", Test: "TestDualWithoutOthers",
	},
	{
		Name: "told-of-hidden", Rule: "handlers are told of the preferred copy only",
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
		Name: "replica-deleted-blindly", Rule: "a replica is deleted only if it is the one that was compared",
		Edits: []Edit{{
			File: "pkg/replication/push/replicas.go",
			Before: `		version := obj.GetResourceVersion()
		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})`,
			After: `		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{})`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestReplicaIsDeletedAsCompared",
	},
	{
		Name: "replica-of-short-lived", Rule: "an object that is deleted while its replica is being written leaves none",
		Edits: []Edit{{
			File:   "pkg/replication/push/sinks.go",
			Before: `	case has || l.ledger.has(key):`,
			After:  `	case has:`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestEngineModel",
	},
	{
		Name: "replica-missed-deletion", Rule: "what was deleted while nobody was told has no replica",
		Edits: []Edit{{
			File:   "pkg/replication/push/sinks.go",
			Before: `		if _, observed := l.seen[key]; !observed {`,
			After:  `		if _, observed := l.seen[key]; !observed && !l.comparing {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestEngineModel",
	},
	{
		Name: "replica-unverified", Rule: "a replica that was changed without an event is repaired",
		Edits: []Edit{{
			File:   "pkg/replication/push/verifier.go",
			Before: `&& expected.root != rootOf(answer, resource) {`,
			After:  `&& expected.root == rootOf(answer, resource) {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestDigestsFindWhatNoEventReports",
	},
	{
		Name: "replica-other-data", Rule: "data with another ID is compared anew",
		Edits: []Edit{{
			File:   "pkg/replication/push/verifier.go",
			Before: `if v.dataID != "" && v.dataID != answer.DataID {`,
			After:  `if v.dataID != "" && v.dataID > answer.DataID {`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestOtherDataID",
	},
	{
		Name: "mark-lost", Rule: "everything is compared anew after the loss of a mark",
		Edits: []Edit{{
			File:   "pkg/replication/push/checkpoints.go",
			Before: `	if before == nil || m.known != nil && m.known.Number`,
			After:  `	if before == nil || m.known == nil || m.known.Number`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestMarks",
	},
	{
		Name: "mark-epoch", Rule: "marks have another epoch after the shard was restored from an older backup",
		Edits: []Edit{{
			File:   "pkg/replication/push/epoch.go",
			Before: `		latest = newEpochAfter(found)`,
			After:  `		latest = found`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestMarks",
	},
	{
		Name: "replicas-of-removed", Rule: "the replicas of a resource that was removed from the table are deleted",
		Edits: []Edit{{
			File:   "pkg/replication/push/mirror.go",
			Before: `		return remaining == 0 && err == nil, nil`,
			After:  `		return remaining == 0 || err != nil, nil`,
		}},
		CaughtBy: "./pkg/replication/push", Test: "TestResourcesComeAndGo",
	},
	{
		Name: "relay-loop", Rule: "a cache server does not relay what comes from itself",
		Edits: []Edit{{
			File:   "pkg/cacheserver/relay/relays.go",
			Before: ` || slices.Contains(via, r.self.Name)`,
			After:  ``,
		}},
		CaughtBy: "./pkg/cacheserver/relay", Test: "TestWays",
	},
	{
		Name: "last-writer", Rule: "an object is shown for as long as any shard has a replica of it",
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
