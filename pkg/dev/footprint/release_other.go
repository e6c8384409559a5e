//go:build !linux

package footprint

// releaseProgram does nothing here: what is mapped of the program is little
// without the way in which Linux maps whole surroundings of a page.
func releaseProgram() error { return nil }
