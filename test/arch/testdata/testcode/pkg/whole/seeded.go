//go:build seeded && linux

package whole

func seeded() bool { return true }
