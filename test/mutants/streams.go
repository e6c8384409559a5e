package mutants

// streams are mutants of responses during concurrent writes, which the robustness suite must find. They only affect some requests for
// ConfigMaps, because the servers should not fail.
var streams = []Mutant{
	{
		Name: "duplicate-event", Rule: "a stream contains each event once",
		Edits: []Edit{{
			File: "pkg/storage/hub/dispatch.go",
			Before: `	select {
	case w.result <- out:
	default:`,
			After: `	if h.cfg.Resource.Resource == "configmaps" && e.version%20 == 3 && len(w.result) == 0 {
		w.result <- out
	}
	select {
	case w.result <- out:
	default:`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "repeating-watch", Rule: "a watch begins after its resource version",
		Edits: []Edit{{
			File:   "pkg/storage/hub/watch.go",
			Before: `	w.cursor, w.from = h.history.after(version), h.history.next`,
			After: `	w.cursor, w.from = h.history.after(version), h.history.next
	if h.cfg.Resource.Resource == "configmaps" && version%5 == 0 {
		w.cursor = max(w.cursor-min(w.cursor, 3), h.history.first)
	}`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "early-bookmark", Rule: "no event after a bookmark has the same or a smaller version",
		Edits: []Edit{{
			File:   "pkg/storage/hub/hub.go",
			Before: `	if err := h.cfg.Versioner.UpdateObject(bookmark, version); err != nil {`,
			After: `	early := version
	if h.cfg.Resource.Resource == "configmaps" {
		early += 15
	}
	if err := h.cfg.Versioner.UpdateObject(bookmark, early); err != nil {`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "crossing-event", Rule: "a watch of one logical cluster must not contain events of another",
		Edits: []Edit{
			{
				File: "pkg/storage/hub/index.go",
				Before: `	inScope(key)
	return found, filtered`,
				After: `	inScope(key)
	for watched, x := range s {
		if strings.Contains(key, "/configmaps/") && strings.Contains(key, "/default/hot-1") && strings.HasSuffix(watched, "/default/") && !strings.HasPrefix(key, watched) {
			found = x.find(h, found)
		}
	}
	return found, filtered`,
			},
			{File: "pkg/storage/hub/index.go", Before: `	"slices"
`, After: `	"slices"
	"strings"
`},
		},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "stale-page", Rule: "a page of a list without a resourceVersion contains every write that was acknowledged before",
		Edits: []Edit{
			{
				File: "pkg/storage/hub/page.go",
				Before: `	return objects, version, err
}`,
				After: `	if want == "" && err == nil && h.cfg.Resource.Resource == "configmaps" {
		stalePages.Lock()
		defer stalePages.Unlock()
		if time.Since(stalePages.at) > time.Second {
			stalePages.at, stalePages.objects, stalePages.version = time.Now(), objects, version
		}
		return stalePages.objects, stalePages.version, nil
	}
	return objects, version, err
}`,
			},
			{
				File:   "pkg/storage/hub/page.go",
				Before: `type page struct {`,
				After: `var stalePages struct {
	sync.Mutex
	at      time.Time
	objects *snapshot
	version uint64
}

type page struct {`,
			},
			{File: "pkg/storage/hub/page.go", Before: `	"reflect"
`, After: `	"reflect"
	"sync"
`},
		},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "drifting-pages", Rule: "all pages of a list have one resource version",
		Edits: []Edit{{
			File:   "pkg/storage/hub/page.go",
			Before: `		return h.at(version), version, nil`,
			After: `		if latest, now := h.latest(); h.cfg.Resource.Resource == "configmaps" && now%3 == 0 {
			return latest, now, nil
		}
		return h.at(version), version, nil`,
		}},
		CaughtBy: SuiteRobustness,
	},
	{
		Name: "missing-deleted-event", Rule: "if an object no longer matches a selector, its watches contain DELETED",
		Edits: []Edit{{
			File: "pkg/storage/hub/select.go",
			Before: `	case was:
		return`,
			After: `	case was && e.kind != watch.Deleted && w.hub.cfg.Resource.Resource == "configmaps":
		return watch.Event{Type: watch.Modified, Object: cache.last(w.hub, e)}, true
	case was:
		return`,
		}},
		CaughtBy: SuiteRobustness,
	},
}
