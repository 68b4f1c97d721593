// Tells the server the browser's time zone, by a cookie; the next page is in it.

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.includes(`browser_zone=${encodeURIComponent(zone)}`)) {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `browser_zone=${encodeURIComponent(zone)}; path=/admin/; max-age=34560000; samesite=lax${secure}`;
}
