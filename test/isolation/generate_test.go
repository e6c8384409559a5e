package isolation

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator creates requests from pieces. The result depends only on its random source.
type generator struct {
	*rand.Rand

	attackers, targets int
}

// generate returns an input of a seed. Half of the inputs are valid requests of administrators of
// alpha with an unusual piece, because these are processed furthest. The others use all attackers
// and targets.
func (w *world) generate(seed, number uint64) input {
	g := generator{Rand: rand.New(rand.NewPCG(seed, number)), attackers: len(w.attackers), targets: len(w.targets)}
	in := input{attacker: g.IntN(insiderCount), target: g.target()}
	switch g.IntN(10) {
	case 0, 1, 2, 3, 4:
		in.target = g.IntN(2)
		in.raw = g.request(pick(g, []string{"/clusters/$A$", "/clusters/$A$", "/clusters/$APATH$"}), 12)
	case 5, 6:
		in.raw = g.request(pick(g, []string{"/clusters/$B$", "/clusters/$B$", "/clusters/$BPATH$"}), 8)
	case 7:
		in.attacker = g.IntN(g.attackers)
		in.raw = g.request(pick(g, []string{"/clusters/$A$", "/clusters/$B$", "/clusters/$BPATH$"}), 8)
	default:
		if g.chance(3) {
			in.attacker = g.IntN(g.attackers)
		}
		in.raw = g.request(strings.ReplaceAll(pick(g, prefixes), "CLUSTER", pick(g, clusterSegments)), 4)
	}
	for !w.attackers[in.attacker].attacks(w.targets[in.target].name) {
		in.target = g.target()
	}
	return in
}

// insiderCount is the number of administrators of alpha, the first of the attackers.
const insiderCount = 5

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

// chance is true with a probability of 1/n.
func (g generator) chance(n int) bool { return g.IntN(n) == 0 }

// target returns a random target, with a preference for the front-proxy and the victims' shard.
func (g generator) target() int { return []int{0, 0, 0, 1, 1, 1, 2, 3}[g.IntN(8)] }

// request returns a request with a path prefix. One of mutated requests is mutated.
func (g generator) request(prefix string, mutated int) string {
	method, path, lines, body := g.parts(prefix)
	head := method + " " + path + " HTTP/1.1"
	for _, line := range lines {
		head += "\r\n" + line
	}
	if g.chance(mutated) {
		head = g.mutate(head)
	}
	return head + "\r\n\r\n" + body
}

// parts returns a valid request with unusual pieces.
func (g generator) parts(prefix string) (method, path string, lines []string, body string) {
	path = prefix
	for range g.IntN(3) * g.IntN(2) {
		lines = append(lines, pick(g, headers))
	}
	if g.chance(7) {
		method, path = g.method(), path+pick(g, others)
		return method, path + g.query(), lines, ""
	}
	res := pick(g, resources)
	collection := res.group + "/" + res.plural
	switch {
	case res.namespaced && g.chance(8):
		collection = res.group + "/namespaces/" + g.name() + "/" + res.plural
	case res.namespaced && !g.chance(6):
		collection = res.group + "/namespaces/vault/" + res.plural
	}
	object := collection + "/" + g.name()
	if g.chance(6) {
		object += "/" + pick(g, subresources)
	}
	switch g.IntN(12) {
	case 0, 1:
		return "POST", path + collection + g.query(), append(lines, "Content-Type: application/json"), g.body(res)
	case 2:
		return "PUT", path + object + g.query(), append(lines, "Content-Type: application/json"), g.body(res)
	case 3:
		patch := pick(g, patches)
		body := strings.NewReplacer("META", pick(g, metadata), "NAME", pick(g, objectNames), "KIND", res.kind, "VERSION", res.apiVersion).Replace(patch[1])
		return "PATCH", path + object + g.query(), append(lines, "Content-Type: "+patch[0]), body
	case 4:
		if g.chance(4) {
			object = collection
		}
		return "DELETE", path + object + g.query(), append(lines, "Content-Type: application/json"), pick(g, deletions)
	case 5:
		return g.method(), path + object + g.query(), lines, ""
	case 6, 7, 8:
		return "GET", path + object + g.query(), lines, ""
	default:
		return "GET", path + collection + g.query(), lines, ""
	}
}

func (g generator) method() string {
	return pick(g, []string{"GET", "GET", "HEAD", "OPTIONS", "POST", "DELETE", "TRACE", "CONNECT", "PROPFIND", "get", "WATCH", "LIST", "G\u00cbT", "PUT", "PATCH"})
}

// name returns a random name, with a preference for existing ones.
func (g generator) name() string {
	if g.chance(5) {
		return pick(g, names)
	}
	return pick(g, []string{"vault", "treasure", "treasure", "default", "mine"})
}

func (g generator) query() string {
	n := g.IntN(4) - 1
	if n <= 0 {
		return ""
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = pick(g, queries)
	}
	return "?" + strings.Join(parts, "&")
}

// body returns an object to write.
func (g generator) body(res resource) string {
	meta := `"name":"` + pick(g, objectNames) + `"`
	if res.namespaced && g.chance(3) {
		meta += `,"namespace":"` + pick(g, []string{"vault", "default", "$B$", "../$B$", "$B$/vault", "", "*"}) + `"`
	}
	if g.chance(2) {
		meta += "," + pick(g, metadata)
	}
	return `{"apiVersion":"` + res.apiVersion + `","kind":"` + res.kind + `","metadata":{` + meta + `},` + res.body + `}`
}

// insertions are the pieces that mutations insert.
var insertions = []string{
	"/", "//", "/../", "/./", "..", "%2f", "%2F..", "%2e", "%00", "%0a", "%0d%0a", "%25", "%", ";", ":", "|", "\\", "*", "?", "#", "&", "=", "@", "~", " ", "\t", "\x00", "\x7f", "\x80", "\u00e9", "\u2215", "\uff0f", "%ef%bc%8f", "%c0%af", "+", ",", "\"", "'", "<", "$B$", "$A$", "$BPATH$", "/clusters/$B$", "/clusters/*", "\r\nX-Remote-User: kcp-admin", "\r\n X-Remote-Group: system:masters", "\r\nImpersonate-User: x",
}

// mutate changes a few characters of a text.
func (g generator) mutate(text string) string {
	for range 1 + g.IntN(3) {
		at := g.IntN(len(text) + 1)
		end := min(len(text), at+1+g.IntN(4))
		switch g.IntN(7) {
		case 0, 1:
			text = text[:at] + pick(g, insertions) + text[at:]
		case 2:
			text = text[:at] + text[end:]
		case 3:
			text = text[:at] + swapCase(text[at:end]) + text[end:]
		case 4:
			text = text[:at] + percent(text[at:end]) + text[end:]
		case 5:
			text = text[:at] + text[at:end] + text[at:]
		default:
			from := g.IntN(len(text) + 1)
			text = text[:at] + text[from:min(len(text), from+1+g.IntN(24))] + text[at:]
		}
	}
	return text
}

func swapCase(text string) string {
	if upper := strings.ToUpper(text); upper != text {
		return upper
	}
	return strings.ToLower(text)
}

func percent(text string) string {
	var out strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&out, "%%%02x", text[i])
	}
	return out.String()
}
