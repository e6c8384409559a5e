// Package whole is part of a fixture.
package whole

const (
	again    = "example.kcp.io/key"
	prefix   = `internal.shardplane.io/`
	group    = "system:kcp:group"
	etcd     = "/registry"
	other    = "example.com/key"
	text     = "the annotation example.kcp.io/key"
	more     = prefix + "key"
)

var twice = map[string]string{"here.kcp.io": "here.kcp.io"}
